//! A compute node's look at a slot: one READ, and what it says of the memory node since the look before. It keeps no time of its own: the publisher's is in the slot.

use super::{Pressure, Snapshot, Unreadable, Watched, pressure, slot_bytes};
use crate::error::{FabricError, Fault};
use crate::remote::Area;

/// Looks at a slot that is being written.
const TRIES: u32 = 16;

/// Reads a slot.
#[derive(Debug)]
pub struct Reader<A> {
    area: A,
    offset: u64,
    counters: usize,
    bytes: Vec<u8>,
    last: Option<Snapshot>,
}

impl<A: Area> Reader<A> {
    /// Of `counters` counters at `offset` of an area, such as [`crate::remote::Far`] over a connection.
    pub fn new(area: A, offset: u64, counters: usize) -> Result<Self, FabricError> {
        let bytes = slot_bytes(counters);
        if offset.checked_add(bytes as u64).is_none_or(|end| end > area.length()) {
            return Err(FabricError::misuse(format!(
                "a slot of {counters} counters has {bytes} bytes, which at {offset} leave the area of {}",
                area.length()
            )));
        }
        Ok(Self { area, offset, counters, bytes: vec![0; bytes], last: None })
    }

    /// What is published now; `None` if nothing was yet. [`Fault::Peer`] if there is no such slot.
    pub fn read(&mut self) -> Result<Option<Snapshot>, FabricError> {
        for _ in 0..TRIES {
            self.area.read(self.offset, &mut self.bytes)?;
            match Snapshot::parse(&self.bytes, self.counters) {
                Ok(snapshot) => return Ok(Some(snapshot)),
                Err(Unreadable::Empty) => return Ok(None),
                Err(Unreadable::Torn) => {}
                Err(Unreadable::Foreign) => {
                    return Err(FabricError::new(
                        Fault::Peer,
                        format!(
                            "what the peer offers is no slot of {} counters: both sides must mean the same ones",
                            self.counters
                        ),
                    ));
                }
            }
        }
        Err(FabricError::peer(format!(
            "the slot was torn {TRIES} times in a row: two publishers write it, or one without a pause"
        )))
    }

    /// How the memory node has been doing since the last look that found something newer; `None`: nothing is newer, or the publisher began anew.
    pub fn look(&mut self, watched: &Watched) -> Result<Option<Pressure>, FabricError> {
        let Some(now) = self.read()? else { return Ok(None) };
        let felt = self.last.as_ref().and_then(|before| pressure(before, &now, watched));
        if self.last.as_ref().is_none_or(|before| before.serial != now.serial) {
            self.last = Some(now);
        }
        Ok(felt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::stage::Stage;

    #[test]
    fn a_look_compares_with_the_last_one_that_found_something_newer() {
        let area = Stage::new(slot_bytes(4));
        let mut reader = Reader::new(&area, 0, 4).unwrap();
        let watched = Watched { bytes: [0, 1], trouble: [2, 3], capacity_bps: 8_000_000_000 };
        let publish = |serial, at_ns, bytes| {
            let mut out = vec![0; slot_bytes(4)];
            Snapshot { serial, at_ns, values: vec![bytes, 0, 0, 0] }.emit(&mut out).unwrap();
            Area::write(&area, 0, &out).unwrap();
        };
        assert_eq!(reader.look(&watched), Ok(None));
        publish(1, 0, 0);
        assert_eq!(reader.look(&watched), Ok(None));
        publish(2, 5_000_000, 4_900_000);
        assert_eq!(reader.look(&watched), Ok(Some(Pressure::Congested)));
        assert_eq!(reader.look(&watched), Ok(None));
        publish(4, 15_000_000, 5_000_000);
        assert_eq!(reader.look(&watched), Ok(Some(Pressure::Calm)));
        // Begun anew, and then on from there.
        publish(1, 0, 0);
        assert_eq!(reader.look(&watched), Ok(None));
        publish(2, 5_000_000, 3_600_000);
        assert_eq!(reader.look(&watched), Ok(Some(Pressure::Loaded)));
        assert_eq!(Reader::new(&area, 8, 4).unwrap_err().fault, Fault::Misuse);
        assert_eq!(Reader::new(&area, 0, 3).unwrap().read().unwrap_err().fault, Fault::Peer);
    }
}
