//! One completion queue entry: a 64-byte unit of atomic words, and its translation to and from a [`WorkCompletion`].

use scalefabric_verbs::{Qpn, RKey, WcFlags, WcOpcode, WcStatus, WorkCompletion};

use crate::ring::atomic::{AtomicU64, Ordering};

/// Words that a completion takes; the last one of the unit is spare.
const WORDS: usize = 7;
/// The word of the time. 0 in queues without timestamps: nobody writes it.
const TIME: usize = 6;

/// A CQE. The words need no ordering of their own; the ring's counters publish them.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Cqe([AtomicU64; WORDS]);

/// Bit of word 1: nobody may see this one any more (its QP is gone).
const FORGOTTEN: u64 = 1 << 63;

impl Cqe {
    pub fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    #[inline]
    fn set(&self, word: usize, low: u32, high: u32) {
        self.0[word].store(u64::from(low) | u64::from(high) << 32, Ordering::Relaxed);
    }

    #[inline]
    fn get(&self, word: usize) -> (u32, u32) {
        let value = self.0[word].load(Ordering::Relaxed);
        (value as u32, (value >> 32) as u32)
    }

    #[inline]
    pub fn write(&self, wc: &WorkCompletion) {
        self.0[0].store(wc.wr_id, Ordering::Relaxed);
        self.set(1, wc.status as u32 | (wc.opcode as u32) << 8, wc.flags.bits() & 0xffff | u32::from(wc.sl) << 16);
        self.set(2, wc.vendor_err, wc.byte_len);
        self.set(3, wc.imm, wc.invalidated_rkey.0);
        self.set(4, wc.qp_num.get(), wc.src_qp.get());
        self.set(5, u32::from(wc.pkey_index), 0);
    }

    /// Notes when it was placed.
    #[inline]
    pub fn stamp(&self, now_ns: u64) {
        self.0[TIME].store(now_ns, Ordering::Relaxed);
    }

    /// Takes it out; false, and nothing is changed, if it was forgotten.
    #[inline]
    pub fn read_into(&self, out: &mut WorkCompletion) -> bool {
        let (what, how) = self.get(1);
        if u64::from(how) << 32 & FORGOTTEN != 0 {
            return false;
        }
        let ((vendor_err, byte_len), (imm, invalidated_rkey)) = (self.get(2), self.get(3));
        let (qp_num, src_qp) = self.get(4);
        *out = WorkCompletion {
            wr_id: self.0[0].load(Ordering::Relaxed),
            status: status(what as u8),
            opcode: opcode((what >> 8) as u8),
            vendor_err,
            byte_len,
            imm,
            invalidated_rkey: RKey(invalidated_rkey),
            qp_num: Qpn::new(qp_num),
            src_qp: Qpn::new(src_qp),
            flags: WcFlags::from_bits_retain(how & 0xffff),
            pkey_index: self.get(5).0 as u16,
            sl: (how >> 16) as u8 & 15,
            timestamp_ns: self.0[TIME].load(Ordering::Relaxed),
        };
        true
    }

    pub fn qpn(&self) -> Qpn {
        Qpn::new(self.get(4).0)
    }

    pub fn forget(&self) {
        self.0[1].fetch_or(FORGOTTEN, Ordering::Relaxed);
    }
}

/// The statuses in the order of their numbers.
const STATUSES: [WcStatus; 24] = [
    WcStatus::Success,
    WcStatus::LocLenErr,
    WcStatus::LocQpOpErr,
    WcStatus::LocEecOpErr,
    WcStatus::LocProtErr,
    WcStatus::WrFlushErr,
    WcStatus::MwBindErr,
    WcStatus::BadRespErr,
    WcStatus::LocAccessErr,
    WcStatus::RemInvReqErr,
    WcStatus::RemAccessErr,
    WcStatus::RemOpErr,
    WcStatus::RetryExcErr,
    WcStatus::RnrRetryExcErr,
    WcStatus::LocRddViolErr,
    WcStatus::RemInvRdReqErr,
    WcStatus::RemAbortErr,
    WcStatus::InvEecnErr,
    WcStatus::InvEecStateErr,
    WcStatus::FatalErr,
    WcStatus::RespTimeoutErr,
    WcStatus::GeneralErr,
    WcStatus::TmErr,
    WcStatus::TmRndvIncomplete,
];

const OPCODES: [WcOpcode; 11] = [
    WcOpcode::Send,
    WcOpcode::RdmaWrite,
    WcOpcode::RdmaRead,
    WcOpcode::CompSwap,
    WcOpcode::FetchAdd,
    WcOpcode::BindMw,
    WcOpcode::LocalInv,
    WcOpcode::Flush,
    WcOpcode::AtomicWrite,
    WcOpcode::Recv,
    WcOpcode::RecvRdmaWithImm,
];

#[inline]
fn status(number: u8) -> WcStatus {
    // Only `write` fills the field, so the number is in the table.
    STATUSES.get(number as usize).copied().unwrap_or(WcStatus::GeneralErr)
}

#[inline]
fn opcode(number: u8) -> WcOpcode {
    match number {
        ..=6 => OPCODES[number as usize],
        8 => WcOpcode::Flush,
        9 => WcOpcode::AtomicWrite,
        129 => WcOpcode::RecvRdmaWithImm,
        _ => WcOpcode::Recv,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_status_and_opcode_survives_the_entry() {
        let cqe = Cqe::new();
        for (i, status) in STATUSES.into_iter().enumerate() {
            assert_eq!(status as usize, i);
            for opcode in OPCODES {
                let wc = WorkCompletion {
                    wr_id: u64::MAX - i as u64,
                    status,
                    opcode,
                    vendor_err: 1 << 31,
                    byte_len: 1 << 31,
                    imm: 0xdead_beef,
                    invalidated_rkey: RKey(0x8000_0001),
                    qp_num: Qpn::new(0xff_ffff),
                    src_qp: Qpn::new(0x80_0001),
                    flags: WcFlags::all(),
                    pkey_index: 0xffff,
                    sl: 15,
                    timestamp_ns: 0,
                };
                cqe.write(&wc);
                let mut out = WorkCompletion::default();
                assert!(cqe.read_into(&mut out));
                assert_eq!(out, wc);
            }
        }
        assert_eq!(size_of::<Cqe>(), 64);
        cqe.forget();
        assert!(!cqe.read_into(&mut WorkCompletion::default()));
    }
}
