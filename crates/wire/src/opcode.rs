//! The opcode table (clause 9.2, tables 35 to 40): every packet a RoCEv2 port may send, and what follows its BTH.
//!
//! Everything else that is said about opcodes is derived from [`TABLE`]. RD is not implemented by any RoCE device and is
//! left out; its opcodes are unknown here.

use bitflags::bitflags;

/// Transport service, the upper three bits of the opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Service {
    /// Reliable connection.
    Rc = 0,
    /// Unreliable connection.
    Uc = 1,
    /// Unreliable datagram.
    Ud = 3,
    /// Congestion notification (annex A17).
    Cnp = 4,
    /// Extended reliable connection (annex A14).
    Xrc = 5,
}

/// What a packet does, whatever its service and place in the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Operation {
    Send,
    SendWithImm,
    SendWithInv,
    Write,
    WriteWithImm,
    ReadRequest,
    ReadResponse,
    Acknowledge,
    AtomicAcknowledge,
    CompareSwap,
    FetchAdd,
    Flush,
    AtomicWrite,
    Cnp,
}

/// Place of a packet in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Position {
    First,
    Middle,
    Last,
    Only,
}

bitflags! {
    /// Extended headers, in the order in which they follow the BTH.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Extensions: u16 {
        /// XRC extended, 4 bytes.
        const XRCETH = 1;
        /// Datagram extended, 8 bytes.
        const DETH = 1 << 1;
        /// FLUSH extended, 4 bytes.
        const FETH = 1 << 2;
        /// RDMA extended, 16 bytes.
        const RETH = 1 << 3;
        /// Atomic extended, 28 bytes.
        const ATOMIC_ETH = 1 << 4;
        /// ACK extended, 4 bytes.
        const AETH = 1 << 5;
        /// Atomic ACK extended, 8 bytes.
        const ATOMIC_ACK_ETH = 1 << 6;
        /// Immediate data, 4 bytes.
        const IMM_DT = 1 << 7;
        /// Invalidate extended, 4 bytes.
        const IETH = 1 << 8;
    }
}

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpcodeInfo {
    /// The byte on the wire.
    pub code: u8,
    /// Name as the IBTA prints it.
    pub name: &'static str,
    /// Service.
    pub service: Service,
    /// Operation.
    pub operation: Operation,
    /// Position; `Only` for what is never split.
    pub position: Position,
    /// Extended headers.
    pub extensions: Extensions,
    /// Whether payload may follow.
    pub payload: bool,
}

/// An opcode that is in the table.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opcode(u8);

macro_rules! table {
    ($( $code:literal $name:literal $svc:ident $op:ident $pos:ident [$($ext:ident)*] $pay:literal; )*) => {
        /// Every opcode.
        pub const TABLE: &[OpcodeInfo] = &[ $( OpcodeInfo {
            code: $code, name: $name, service: Service::$svc, operation: Operation::$op, position: Position::$pos,
            extensions: Extensions::empty()$(.union(Extensions::$ext))*, payload: $pay,
        }, )* ];
    };
}

table! {
    0x00 "RC SEND FIRST" Rc Send First [] true;
    0x01 "RC SEND MIDDLE" Rc Send Middle [] true;
    0x02 "RC SEND LAST" Rc Send Last [] true;
    0x03 "RC SEND LAST with immediate" Rc SendWithImm Last [IMM_DT] true;
    0x04 "RC SEND ONLY" Rc Send Only [] true;
    0x05 "RC SEND ONLY with immediate" Rc SendWithImm Only [IMM_DT] true;
    0x06 "RC RDMA WRITE FIRST" Rc Write First [RETH] true;
    0x07 "RC RDMA WRITE MIDDLE" Rc Write Middle [] true;
    0x08 "RC RDMA WRITE LAST" Rc Write Last [] true;
    0x09 "RC RDMA WRITE LAST with immediate" Rc WriteWithImm Last [IMM_DT] true;
    0x0a "RC RDMA WRITE ONLY" Rc Write Only [RETH] true;
    0x0b "RC RDMA WRITE ONLY with immediate" Rc WriteWithImm Only [RETH IMM_DT] true;
    0x0c "RC RDMA READ Request" Rc ReadRequest Only [RETH] false;
    0x0d "RC RDMA READ response FIRST" Rc ReadResponse First [AETH] true;
    0x0e "RC RDMA READ response MIDDLE" Rc ReadResponse Middle [] true;
    0x0f "RC RDMA READ response LAST" Rc ReadResponse Last [AETH] true;
    0x10 "RC RDMA READ response ONLY" Rc ReadResponse Only [AETH] true;
    0x11 "RC Acknowledge" Rc Acknowledge Only [AETH] false;
    0x12 "RC ATOMIC Acknowledge" Rc AtomicAcknowledge Only [AETH ATOMIC_ACK_ETH] false;
    0x13 "RC CmpSwap" Rc CompareSwap Only [ATOMIC_ETH] false;
    0x14 "RC FetchAdd" Rc FetchAdd Only [ATOMIC_ETH] false;
    0x16 "RC SEND LAST with invalidate" Rc SendWithInv Last [IETH] true;
    0x17 "RC SEND ONLY with invalidate" Rc SendWithInv Only [IETH] true;
    0x1c "RC FLUSH" Rc Flush Only [FETH RETH] false;
    0x1d "RC ATOMIC WRITE" Rc AtomicWrite Only [RETH] true;
    0x20 "UC SEND FIRST" Uc Send First [] true;
    0x21 "UC SEND MIDDLE" Uc Send Middle [] true;
    0x22 "UC SEND LAST" Uc Send Last [] true;
    0x23 "UC SEND LAST with immediate" Uc SendWithImm Last [IMM_DT] true;
    0x24 "UC SEND ONLY" Uc Send Only [] true;
    0x25 "UC SEND ONLY with immediate" Uc SendWithImm Only [IMM_DT] true;
    0x26 "UC RDMA WRITE FIRST" Uc Write First [RETH] true;
    0x27 "UC RDMA WRITE MIDDLE" Uc Write Middle [] true;
    0x28 "UC RDMA WRITE LAST" Uc Write Last [] true;
    0x29 "UC RDMA WRITE LAST with immediate" Uc WriteWithImm Last [IMM_DT] true;
    0x2a "UC RDMA WRITE ONLY" Uc Write Only [RETH] true;
    0x2b "UC RDMA WRITE ONLY with immediate" Uc WriteWithImm Only [RETH IMM_DT] true;
    0x64 "UD SEND ONLY" Ud Send Only [DETH] true;
    0x65 "UD SEND ONLY with immediate" Ud SendWithImm Only [DETH IMM_DT] true;
    0x81 "CNP" Cnp Cnp Only [] true;
    0xa0 "XRC SEND FIRST" Xrc Send First [XRCETH] true;
    0xa1 "XRC SEND MIDDLE" Xrc Send Middle [XRCETH] true;
    0xa2 "XRC SEND LAST" Xrc Send Last [XRCETH] true;
    0xa3 "XRC SEND LAST with immediate" Xrc SendWithImm Last [XRCETH IMM_DT] true;
    0xa4 "XRC SEND ONLY" Xrc Send Only [XRCETH] true;
    0xa5 "XRC SEND ONLY with immediate" Xrc SendWithImm Only [XRCETH IMM_DT] true;
    0xa6 "XRC RDMA WRITE FIRST" Xrc Write First [XRCETH RETH] true;
    0xa7 "XRC RDMA WRITE MIDDLE" Xrc Write Middle [XRCETH] true;
    0xa8 "XRC RDMA WRITE LAST" Xrc Write Last [XRCETH] true;
    0xa9 "XRC RDMA WRITE LAST with immediate" Xrc WriteWithImm Last [XRCETH IMM_DT] true;
    0xaa "XRC RDMA WRITE ONLY" Xrc Write Only [XRCETH RETH] true;
    0xab "XRC RDMA WRITE ONLY with immediate" Xrc WriteWithImm Only [XRCETH RETH IMM_DT] true;
    0xac "XRC RDMA READ Request" Xrc ReadRequest Only [XRCETH RETH] false;
    0xad "XRC RDMA READ response FIRST" Xrc ReadResponse First [AETH] true;
    0xae "XRC RDMA READ response MIDDLE" Xrc ReadResponse Middle [] true;
    0xaf "XRC RDMA READ response LAST" Xrc ReadResponse Last [AETH] true;
    0xb0 "XRC RDMA READ response ONLY" Xrc ReadResponse Only [AETH] true;
    0xb1 "XRC Acknowledge" Xrc Acknowledge Only [AETH] false;
    0xb2 "XRC ATOMIC Acknowledge" Xrc AtomicAcknowledge Only [AETH ATOMIC_ACK_ETH] false;
    0xb3 "XRC CmpSwap" Xrc CompareSwap Only [XRCETH ATOMIC_ETH] false;
    0xb4 "XRC FetchAdd" Xrc FetchAdd Only [XRCETH ATOMIC_ETH] false;
    0xb6 "XRC SEND LAST with invalidate" Xrc SendWithInv Last [XRCETH IETH] true;
    0xb7 "XRC SEND ONLY with invalidate" Xrc SendWithInv Only [XRCETH IETH] true;
    0xbc "XRC FLUSH" Xrc Flush Only [XRCETH FETH RETH] false;
    0xbd "XRC ATOMIC WRITE" Xrc AtomicWrite Only [XRCETH RETH] true;
}

/// Row of each code in [`TABLE`], or 255.
const INDEX: [u8; 256] = {
    let mut index = [255; 256];
    let mut row = 0;
    while row < TABLE.len() {
        index[TABLE[row].code as usize] = row as u8;
        row += 1;
    }
    index
};

impl Opcode {
    /// The opcode of a byte, if the table has it.
    pub const fn from_byte(code: u8) -> Option<Self> {
        if INDEX[code as usize] == 255 { None } else { Some(Self(code)) }
    }

    /// The opcode for an operation at a place of a message, if that service has it.
    pub const fn find(service: Service, operation: Operation, position: Position) -> Option<Self> {
        let mut row = 0;
        while row < TABLE.len() {
            let info = &TABLE[row];
            if info.service as u8 == service as u8
                && info.operation as u8 == operation as u8
                && info.position as u8 == position as u8
            {
                return Some(Self(info.code));
            }
            row += 1;
        }
        None
    }

    /// The byte on the wire.
    pub const fn byte(self) -> u8 {
        self.0
    }

    /// True for services whose requests are answered (clause 9.7): a sender of the others hears nothing of what is lost.
    pub const fn is_acknowledged(self) -> bool {
        matches!(self.info().service, Service::Rc | Service::Xrc)
    }

    /// Its row.
    pub const fn info(self) -> &'static OpcodeInfo {
        &TABLE[INDEX[self.0 as usize] as usize]
    }
}

impl core::fmt::Debug for Opcode {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.info().name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;
    use core::fmt::Write;

    /// The table as text; a change of the table is a change of `opcode_table.txt`, to be read by a person.
    #[test]
    fn table_is_as_recorded() {
        let mut text = String::new();
        for info in TABLE {
            let OpcodeInfo { code, name, service, operation, position, extensions, payload } = info;
            let length = Opcode(*code).header_len();
            let headers: alloc::vec::Vec<_> = extensions.iter_names().map(|(name, _)| name).collect();
            let payload = if *payload { "payload" } else { "no payload" };
            writeln!(
                text,
                "{code:#04x} {name}: {service:?} {operation:?} {position:?}, {length} bytes {headers:?}, {payload}"
            )
            .unwrap();
        }
        assert_eq!(text, include_str!("opcode_table.txt"), "if this is meant, record the table anew:\n{text}");
    }

    #[test]
    fn codes_are_ascending_and_find_themselves() {
        assert!(TABLE.is_sorted_by(|a, b| a.code < b.code));
        for info in TABLE {
            let opcode = Opcode::from_byte(info.code).unwrap();
            assert_eq!(opcode.info(), info);
            assert_eq!(Opcode::find(info.service, info.operation, info.position), Some(opcode));
            assert_eq!(info.service as u8, info.code >> 5);
        }
        let known = (0..=255).filter(|&code| Opcode::from_byte(code).is_some()).count();
        assert_eq!(known, TABLE.len());
    }

    #[test]
    fn only_reliable_services_read_and_do_atomics() {
        for info in TABLE {
            let reliable = matches!(info.service, Service::Rc | Service::Xrc);
            let needs_answer = matches!(
                info.operation,
                Operation::ReadRequest
                    | Operation::CompareSwap
                    | Operation::FetchAdd
                    | Operation::Flush
                    | Operation::AtomicWrite
            );
            assert!(!needs_answer || reliable, "{}", info.name);
        }
    }
}
