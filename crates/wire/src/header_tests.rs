//! The five tests that every header of fixed size passes: parse a known one, emit it back, refuse a short one, refuse each
//! illegal field, round trip anything.

/// Makes the five tests. `illegal` lists byte patches of the known header (offset, value) and the refusal they meet; a
/// header whose every bit pattern is legal gives an empty list, and then random bytes must parse.
macro_rules! header_tests {
    ($t:ty, known: $bytes:expr, means: $value:expr, illegal: [$( ($at:expr, $byte:expr) => $error:expr ),* $(,)?],
     any: $any:expr $(,)?) => {
        const KNOWN: [u8; LEN] = $bytes;

        #[test]
        fn known_bytes_parse() {
            assert_eq!(<$t>::parse(&KNOWN), Ok($value));
        }

        #[test]
        fn known_value_emits_the_same_bytes() {
            let mut out = [0xa5; LEN];
            ($value).emit(&mut out);
            assert_eq!(out, KNOWN);
        }

        #[test]
        fn every_short_header_is_refused() {
            for have in 0..LEN {
                assert_eq!(
                    <$t>::parse(&KNOWN[..have]),
                    Err($crate::invalid::InvalidPacket::Truncated { need: LEN, have })
                );
            }
        }

        #[test]
        fn each_illegal_field_is_refused() {
            let illegal: &[((usize, u8), $crate::invalid::InvalidPacket)] = &[$( (($at, $byte), $error) ),*];
            for ((at, byte), error) in illegal {
                let mut bytes = KNOWN;
                bytes[*at] = *byte;
                assert_eq!(<$t>::parse(&bytes), Err(*error), "byte {at} = {byte:#x}");
            }
            if illegal.is_empty() {
                for at in 0..LEN {
                    for byte in 0..=255 {
                        let mut bytes = KNOWN;
                        bytes[at] = byte;
                        assert!(<$t>::parse(&bytes).is_ok(), "byte {at} = {byte:#x}");
                    }
                }
            }
        }

        proptest::proptest! {
            #[test]
            fn anything_round_trips(value in $any) {
                let mut out = [0x5a; LEN];
                value.emit(&mut out);
                proptest::prop_assert_eq!(<$t>::parse(&out), Ok(value));
            }
        }
    };
}
pub(crate) use header_tests;
