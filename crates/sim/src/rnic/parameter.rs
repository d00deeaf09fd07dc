//! The parameters of a NIC, as one table: key, unit, range, meaning, what happens at the ends of the range. Reader, printer, model and documentation
//! all go by this table. Values are in the profiles, each with its source; none is here.

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// As it is written in a profile: section, dot, name. The name ends in the unit.
    pub key: &'static str,
    /// Smallest value that is taken.
    pub low: f64,
    /// Largest value that is taken.
    pub high: f64,
    /// True if only whole numbers are taken.
    pub whole: bool,
    /// What it is.
    pub meaning: &'static str,
    /// What the model does at both ends of the range.
    pub extremes: &'static str,
}

macro_rules! parameters {
    ($($name:ident = $key:literal, $kind:ident $low:literal ..= $high:literal, $meaning:literal, $extremes:literal;)*) => {
        /// Names a parameter.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(usize)]
        pub enum Key {
            $(#[doc = $meaning] $name,)*
        }

        /// All parameters, in the order of [`Key`].
        pub const PARAMETERS: &[Parameter] = &[
            $(Parameter { key: $key, low: $low, high: $high, whole: parameters!(@$kind), meaning: $meaning, extremes: $extremes },)*
        ];

        impl Key {
            /// All names, in the order of the table.
            pub const ALL: &[Key] = &[$(Key::$name,)*];
        }
    };
    (@real) => { false };
    (@whole) => { true };
}

parameters! {
    CpuPost = "cpu.post_ns", real 0.0 ..= 100_000.0, "the CPU builds one WQE", "0: only the NIC limits; large: one thread posts few operations";
    CpuCompletion = "cpu.completion_ns", real 0.0 ..= 100_000.0, "the CPU handles one CQE, beyond seeing it", "0: signalling costs no CPU; large: unsignalled operations pay";
    CpuPoll = "cpu.poll_ns", real 0.0 ..= 100_000.0, "from the CQE in memory until a polling CPU has seen it", "0: seen at once; large: as if by events";
    CpuPollThread = "cpu.poll_thread_ns", real 0.0 ..= 10_000.0, "and later by this for each further thread that polls", "0: threads do not disturb each other; large: many threads wait for each other";
    CpuEvent = "cpu.event_ns", real 0.0 ..= 1_000_000.0, "what a completion event costs beyond polling", "0: events are free; large: sleeping dominates";
    CpuGather = "cpu.gather_ns", real 0.0 ..= 100_000.0, "once for each round of several operations that are waited for together", "0: a round costs nothing beyond its operations; large: only deep rounds pay";
    CpuSlowdown = "cpu.slowdown_permille", real 0.0 ..= 1000.0, "each further thread slows the CPU parts of all (hyper-threads, shared caches)", "0: threads do not disturb each other; 1000: two threads do the work of one";
    CpuDoorbellLock = "cpu.doorbell_contention_ns", real 0.0 ..= 100_000.0, "a doorbell register that k threads share: this times ln k for each ring, under a lock", "0: sharing costs only the wait; large: sharing is slower than one thread";
    CpuQueueLock = "cpu.queue_lock_ns", real 0.0 ..= 100_000.0, "locks of a QP and its CQ that threads share, for each operation", "0: free locks; large: the QP is serial";
    CpuQueueContention = "cpu.queue_contention_ns", real 0.0 ..= 100_000.0, "the same, times ln k for k threads", "0: no contention; large: more threads are slower";
    DoorbellMmio = "doorbell.mmio_ns", real 0.0 ..= 100_000.0, "posted write to the doorbell register", "0: batches save nothing here; large: batches are needed";
    DoorbellFence = "doorbell.fence_ns", real 0.0 ..= 100_000.0, "store fence before or after it", "as mmio_ns";
    DoorbellSchedule = "doorbell.schedule_ns", real 0.0 ..= 100_000.0, "from the arrival of the ring until the NIC looks at the send queue", "0: at once; large: latency only, no rate";
    DoorbellBlueFlame = "doorbell.blueflame_ns", real 0.0 ..= 100_000.0, "copying 64 B of a WQE to the BAR by BlueFlame, instead of a fetch", "0: BlueFlame always wins; large: it loses to a fetch";
    DoorbellHandle = "doorbell.handle_ns", real 0.0 ..= 100_000.0, "the NIC is busy with one ring", "0: rings do not limit; large: rings, not operations, limit";
    DoorbellAddress = "doorbell.address_ns", real 0.0 ..= 100_000.0, "more for the CPU when a WQE with an address (UD) goes by BlueFlame", "0: UD posts as cheaply as RC; large: UD needs batches";
    DoorbellAddressHandle = "doorbell.address_handle_ns", real 0.0 ..= 100_000.0, "and the NIC is busy with it for this", "as handle_ns, for UD";
    DoorbellRegisters = "doorbell.registers", whole 1.0 ..= 4096.0, "doorbell registers that a process gets by default", "1: all threads share a lock; as many as threads: none does";
    BusGeneration = "bus.generation", whole 1.0 ..= 7.0, "PCIe generation: 2.5, 5, 8, 16, 32, 64, 128 GT/s a lane", "1: the bus limits; 7: never";
    BusLanes = "bus.lanes", whole 1.0 ..= 32.0, "PCIe lanes", "1: the bus limits; 32: rarely";
    BusMaxPayload = "bus.max_payload_bytes", whole 64.0 ..= 4096.0, "PCIe Max_Payload_Size", "64: headers take a third; 4096: none to speak of";
    BusMaxReadRequest = "bus.max_read_request_bytes", whole 64.0 ..= 4096.0, "PCIe Max_Read_Request_Size", "64: one request for each 64 B; 4096: few requests";
    BusTlp = "bus.tlp_overhead_bytes", real 0.0 ..= 256.0, "what one TLP takes beyond its data, framing and its share of DLLPs included", "0: an ideal bus; 256: small transfers limit";
    BusRead = "bus.read_ns", real 0.0 ..= 100_000.0, "a small DMA read, there and back", "0: fetches are free; large: BlueFlame and inline pay";
    BusWrite = "bus.write_ns", real 0.0 ..= 100_000.0, "a posted DMA write, until it is in memory", "0: at once; large: completions are late";
    BusReadCredits = "bus.read_credits", whole 1.0 ..= 65536.0, "DMA reads that may be under way at a time (tags, completion credits)", "1: one read at a time; 65536: no limit";
    BusStrict = "bus.strict_ordering_ns", real 0.0 ..= 100_000.0, "wait for each write that reaches memory when relaxed ordering is off", "0: ordering is free; large: relaxed ordering is needed";
    BusAspm = "bus.aspm_exit_ns", real 0.0 ..= 100_000.0, "leaving ASPM's sleep, for each turn of the bus, when ASPM is on", "0: free; large: ASPM must be off";
    NicUnits = "nic.units", whole 1.0 ..= 4096.0, "processing units; one of them at a time works on a QP", "1: all QPs are served in turn; many: units never limit";
    NicUnit = "nic.unit_ns", real 0.0 ..= 100_000.0, "a unit is busy with one operation", "0: one QP reaches the NIC's rate; large: many QPs are needed";
    NicRead = "nic.read_ns", real 0.0 ..= 100_000.0, "the NIC as a whole is busy with one READ it asks for; its inverse is the highest rate", "0: no limit; large: a slow NIC";
    NicWrite = "nic.write_ns", real 0.0 ..= 100_000.0, "the same, for an RC WRITE or SEND", "as read_ns";
    NicUnconnected = "nic.unacknowledged_ns", real 0.0 ..= 100_000.0, "the same, for a UC WRITE or a UD SEND", "as read_ns";
    NicAtomic = "nic.atomic_ns", real 0.0 ..= 100_000.0, "the same, for CAS and FAA", "as read_ns";
    NicResponder = "nic.responder_ns", real 0.0 ..= 100_000.0, "the NIC is busy with one request of a peer", "0: the requester limits; large: incast on one host limits";
    NicSegment = "nic.segment_ns", real 0.0 ..= 100_000.0, "more for each further Max_Payload_Size of data", "0: size costs only bandwidth; large: a cliff at Max_Payload_Size";
    NicByte = "nic.byte_ps", real 0.0 ..= 10_000.0, "more for each byte of data, in picoseconds", "0: size costs only bandwidth; large: the chip is slower than the wire";
    NicTransmit = "nic.transmit_ns", real 0.0 ..= 100_000.0, "from the WQE in the NIC to the first bit on the wire", "latency only";
    NicReceive = "nic.receive_ns", real 0.0 ..= 100_000.0, "from the last bit to the DMA or the answer", "latency only";
    NicAcknowledge = "nic.acknowledge_ns", real 0.0 ..= 100_000.0, "handling an ACK (RC)", "0: UC is no faster; large: UC wins";
    NicConsume = "nic.consume_ns", real 0.0 ..= 100_000.0, "the responder takes a receive WQE and completes it (SEND)", "0: SEND is like WRITE; large: one-sided wins";
    NicInline = "nic.inline_bytes", whole 0.0 ..= 4096.0, "largest inline data", "0: no inline; large: the CPU copies it";
    NicOutstanding = "nic.outstanding_reads", whole 1.0 ..= 65536.0, "READs and atomics that one QP may have under way (max_rd_atomic)", "1: one a round trip; large: no limit";
    QpcEntries = "qpc.entries", whole 8.0 ..= 16_777_216.0, "QP contexts in the NIC's SRAM", "8: always misses; large: never";
    QpcFetch = "qpc.fetch_ns", real 0.0 ..= 100_000.0, "latency of fetching a context", "latency of a miss";
    QpcReadStall = "qpc.read_stall_ns", real 0.0 ..= 100_000.0, "how long a miss keeps the NIC from other work, for READs and atomics; fetches overlap", "0: misses are hidden; as fetch_ns: nothing is hidden";
    QpcWriteStall = "qpc.write_stall_ns", real 0.0 ..= 100_000.0, "the same, for WRITE and SEND", "as read_stall_ns";
    MapEntries = "qpc.map_entries", whole 8.0 ..= 16_777_216.0, "entries of the map that says where contexts are in host memory (ICM)", "8: a second fetch for each miss; large: none";
    MapStall = "qpc.map_stall_ns", real 0.0 ..= 100_000.0, "how long a miss there keeps the NIC from other work", "0: hidden";
    ResponderEntries = "qpc.responder_entries", whole 8.0 ..= 16_777_216.0, "responder contexts in SRAM", "as entries, for requests of peers";
    ResponderStall = "qpc.responder_stall_ns", real 0.0 ..= 100_000.0, "how long a miss there keeps the responder from other work", "0: hidden";
    WqePrefetch = "wqe.prefetch", whole 1.0 ..= 256.0, "WQEs that one DMA read brings", "1: a read for each; large: a read for each batch";
    WqeEntries = "wqe.entries", whole 8.0 ..= 16_777_216.0, "WQEs of WRITE and SEND that the NIC keeps until the ACK, oldest evicted first", "8: each is fetched again; large: never";
    WqeStall = "wqe.stall_ns", real 0.0 ..= 100_000.0, "how long fetching one again keeps the NIC from other work", "0: hidden";
    FlightEntries = "wqe.read_entries", whole 8.0 ..= 16_777_216.0, "READs and atomics whose WQE the NIC keeps until the response, any one evicted", "as entries";
    FlightStall = "wqe.read_stall_ns", real 0.0 ..= 100_000.0, "how long fetching one again keeps the NIC from other work", "0: hidden";
    SpillEntries = "wqe.spill_entries", whole 8.0 ..= 16_777_216.0, "READs whose state of flight has room in SRAM", "as entries; beyond it the state goes to host memory";
    SpillStall = "wqe.spill_stall_ns", real 0.0 ..= 100_000.0, "how long a state in host memory keeps the NIC from other work", "0: hidden";
    MttEntries = "mtt.entries", whole 8.0 ..= 16_777_216.0, "page translations in SRAM", "8: each access misses; large: never";
    MttMiss = "mtt.miss_ns", real 0.0 ..= 100_000.0, "latency of fetching a translation", "0: small pages are free; large: huge pages are needed";
    MttStall = "mtt.stall_ns", real 0.0 ..= 100_000.0, "how long a miss keeps the responder from other work", "0: hidden";
    MptEntries = "mtt.region_entries", whole 8.0 ..= 16_777_216.0, "memory regions (MPT) in SRAM", "8: each region misses; large: never";
    MptMiss = "mtt.region_miss_ns", real 0.0 ..= 100_000.0, "latency of fetching a region's entry", "0: regions are free; large: few regions are needed";
    MptStall = "mtt.region_stall_ns", real 0.0 ..= 100_000.0, "how long a miss keeps the responder from other work", "0: hidden";
    AtomicEngine = "atomic.engine_ns", real 0.0 ..= 100_000.0, "the atomic unit is busy with one operation on any line", "0: only lines limit; large: the unit limits";
    AtomicLine = "atomic.line_ns", real 0.0 ..= 100_000.0, "a cache line of host memory is locked by one operation", "0: hot lines are free; large: hot lines limit";
    AtomicDram = "atomic.dram_ns", real 0.0 ..= 100_000.0, "more, for unit and line, when the memory does not fit the last-level cache", "0: no difference; large: keep counters small";
    AtomicDevice = "atomic.device_line_ns", real 0.0 ..= 100_000.0, "the same as line_ns in the NIC's own memory", "0: device memory has no hot lines";
    AtomicUnit = "atomic.unit_ns", real 0.0 ..= 100_000.0, "latency of the atomic unit", "latency only";
    AtomicMemory = "atomic.memory_ns", real 0.0 ..= 100_000.0, "latency of reading the word from host memory, and of locking it", "latency only";
    AtomicBuckets = "atomic.lock_buckets", whole 1.0 ..= 16_777_216.0, "locks that lines share, by the low bits of the address", "1: all atomics are serial; large: only the same line is";
    AtomicEmulated = "atomic.emulated_factor", real 1.0 ..= 10_000.0, "how much slower where software emulates PCIe atomics", "1: no difference";
    HotRead = "memory.hot_read_ns", real 0.0 ..= 100_000.0, "READs of one cache line follow each other by this", "0: no hot lines for READ; large: a READ-shared line limits";
    MemoryRead = "memory.read_ns", real 0.0 ..= 100_000.0, "latency of the responder's memory for a READ, the bus included", "latency only";
    CqeWrite = "cqe.write_ns", real 0.0 ..= 100_000.0, "latency of writing a CQE", "latency only";
    CqeBytes = "cqe.bytes", whole 8.0 ..= 128.0, "size of a CQE", "8: cheap on the bus; 128: two cache lines";
    CqeCompress = "cqe.compress", whole 1.0 ..= 64.0, "CQEs that one write can carry", "1: no compression; 64: CQEs cost next to nothing on the bus";
    WireRate = "wire.rate_gbps", real 1.0 ..= 6400.0, "rate of all ports together", "1: the wire limits; 6400: the bus does";
    WirePropagation = "wire.propagation_ns", real 0.0 ..= 10_000_000.0, "cable and transceivers, one way", "0: back to back; large: a WAN";
    WireSwitch = "wire.switch_ns", real 0.0 ..= 1_000_000.0, "one switch", "0: back to back";
    WireMtu = "wire.mtu_bytes", whole 256.0 ..= 4096.0, "path MTU", "256: headers take a quarter; 4096: 2 %";
    WireHeader = "wire.header_bytes", whole 0.0 ..= 256.0, "of each packet, from preamble or LRH to gap or VCRC", "0: an ideal wire";
    WireEfficiency = "wire.efficiency_permille", real 100.0 ..= 1000.0, "share of the rate that a stream of large WRITEs keeps", "1000: the wire's own";
    WireReadEfficiency = "wire.read_efficiency_permille", real 100.0 ..= 1000.0, "the same, for READs", "1000: as WRITE";
}

impl Key {
    /// Its row of the table.
    pub fn row(self) -> &'static Parameter {
        &PARAMETERS[self as usize]
    }

    /// The parameter that is written `section.name`.
    pub fn of(name: &str) -> Option<Key> {
        Key::ALL.iter().copied().find(|key| key.row().key == name)
    }
}

impl Parameter {
    /// The unit, from the end of the name.
    pub fn unit(&self) -> &'static str {
        const UNITS: &[(&str, &str)] = &[
            ("_ns", "ns"),
            ("_ps", "ps"),
            ("_bytes", "B"),
            (".bytes", "B"),
            ("_gbps", "Gb/s"),
            ("_permille", "per mille"),
        ];
        UNITS.iter().find(|(end, _)| self.key.ends_with(end)).map_or("", |(_, unit)| unit)
    }

    /// What is expected of a value, for an error's sentence.
    pub fn expectation(&self) -> String {
        let kind = if self.whole { "a whole number" } else { "a number" };
        let unit = self.unit();
        let space = if unit.is_empty() { "" } else { " " };
        format!("{kind} from {} to {}{space}{unit}", self.low, self.high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_written_once_and_found() {
        for (index, key) in Key::ALL.iter().enumerate() {
            assert_eq!(*key as usize, index);
            assert_eq!(Key::of(key.row().key), Some(*key), "{} stands twice", key.row().key);
            assert!(key.row().low < key.row().high);
        }
    }
}
