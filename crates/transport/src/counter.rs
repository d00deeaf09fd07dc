//! What is counted: every dropped packet by its reason, and the events that Linux's drivers count in `hw_counters`.
//!
//! Only names live here; the numbers live in the device segment, which `nic` owns. Each reason and each counter has a
//! sentence, because a number that nobody can explain helps nobody.

macro_rules! counted {
    ($(#[$m:meta])* $name:ident { $( $var:ident $label:literal $text:literal; )* }) => {
        $(#[$m])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[allow(missing_docs)]
        pub enum $name { $( $var, )* }

        impl $name {
            /// All, in the order of their numbers.
            pub const ALL: &'static [Self] = &[ $( Self::$var, )* ];

            /// Name as a counter.
            pub const fn label(self) -> &'static str {
                match self { $( Self::$var => $label, )* }
            }

            /// What it means.
            pub const fn explain(self) -> &'static str {
                match self { $( Self::$var => $text, )* }
            }
        }
    };
}

counted! {
    /// Why a received packet was dropped. Nothing is dropped without one.
    DropReason {
        Truncated "drop_truncated" "Shorter than its own headers say.";
        BadOpcode "drop_bad_opcode" "The opcode is not in the table.";
        BadVersion "drop_bad_version" "Transport header version is not 0.";
        BadPad "drop_bad_pad" "Pad count larger than the payload, or payload not a multiple of 4.";
        BadIcrc "drop_bad_icrc" "The invariant CRC is wrong: the packet was damaged or its sender computes it wrongly.";
        NoSuchQp "drop_no_such_qp" "No QP here has the destination number.";
        WrongTransport "drop_wrong_transport" "The opcode's service is not that of the QP.";
        QpState "drop_qp_state" "The QP's state does not take packets of this kind.";
        WrongPeer "drop_wrong_peer" "The source address, or the port it came in by, is not that of the connected peer.";
        BadPKey "drop_bad_pkey" "The P_Key does not match the QP's.";
        BadQKey "drop_bad_qkey" "The Q_Key is not the QP's.";
        DuplicateRequest "drop_duplicate_request" "A repeated request whose effect is long done and that needs no answer.";
        OutOfSequence "drop_out_of_sequence" "A request beyond the expected PSN: one before it was lost; answered by one NAK.";
        ReceiverNotReady "drop_receiver_not_ready" "No receive WQE was posted: answered by an RNR NAK (RC), silently lost (UC, UD).";
        OpcodeSequence "drop_opcode_sequence" "FIRST, MIDDLE, LAST came in an impossible order.";
        BadLength "drop_bad_length" "Payload length does not fit the path MTU, the RETH or the receive buffer.";
        RemoteAccess "drop_remote_access" "R_Key, bounds or access flags do not allow it.";
        LocalProtection "drop_local_protection" "The receive buffer could not be written: bad L_Key, bounds, rights, or memory that went away.";
        UnexpectedResponse "drop_unexpected_response" "An ACK or a response that no outstanding request asked for.";
        StaleResponse "drop_stale_response" "A response to a request that is already complete.";
        NoResources "drop_no_resources" "No room to remember another READ or atomic: max_dest_rd_atomic exceeded.";
        Malformed "drop_malformed" "A field has a value the standard forbids.";
        NotMulticastMember "drop_not_multicast_member" "A multicast datagram to a group that no QP here is attached to.";
        PortDown "drop_port_down" "The port was down.";
        Fault "drop_fault" "Dropped on purpose by the configured faults.";
        MailboxFull "drop_mailbox_full" "It was for another process of the shared device, whose mailbox was full.";
        BadTrailer "drop_bad_trailer" "A telemetry trailer of a version that is not known here, or one that contradicts itself.";
        EgressError "drop_egress_error" "The operating system refused to send it.";
    }
}

counted! {
    /// Events counted a port, with the names that rxe and mlx5 use where they mean the same.
    Counter {
        SentPackets "sent_pkts" "Packets sent, and those that `direct_requests` and their answers would have been.";
        ReceivedPackets "rcvd_pkts" "Packets received and accepted, and those that `direct_requests` and their answers would have been.";
        SentBytes "sent_bytes" "Bytes sent, BTH to ICRC.";
        ReceivedBytes "rcvd_bytes" "Bytes received, BTH to ICRC.";
        DuplicateRequests "duplicate_request" "Requests received again after their first arrival (mlx5, rxe).";
        OutOfSequence "out_of_seq_request" "Requests that arrived beyond the expected PSN (rxe); mlx5 calls it out_of_sequence.";
        SentRnrNaks "send_rnr_err" "RNR NAKs sent, as the responder (rxe).";
        ReceivedRnrNaks "rcvd_rnr_err" "RNR NAKs received, as the requester (rxe).";
        ReceivedSequenceNaks "packet_seq_err" "NAK sequence errors received (mlx5); rxe calls it rcvd_seq_err.";
        ImpliedNaks "implied_nak_seq_err" "Responses that implied the loss of an earlier one (mlx5).";
        AckTimeouts "local_ack_timeout_err" "Times the retransmission timer ran out (mlx5); rxe: completer_retry_err counts its end.";
        RetryExceeded "retry_exceeded_err" "QPs that gave up after retry_cnt (rxe).";
        RnrRetryExceeded "retry_rnr_exceeded_err" "QPs that gave up after rnr_retry (rxe).";
        RetransmittedPackets "retransmitted_pkts" "Packets sent again.";
        SentNaks "sent_naks" "NAKs sent, sequence errors included.";
        RemoteAccessErrors "req_remote_access_errors" "NAK remote access errors received (mlx5).";
        RespondedAccessErrors "resp_remote_access_errors" "NAK remote access errors sent (mlx5).";
        RemoteInvalidRequests "req_remote_invalid_request" "NAK invalid requests received (mlx5).";
        LocalLengthErrors "resp_local_length_error" "Local length errors at the responder (mlx5).";
        CqeErrors "req_cqe_error" "Send completions with an error (mlx5).";
        RespondedCqeErrors "resp_cqe_error" "Receive completions with an error (mlx5).";
        CqeFlushErrors "req_cqe_flush_error" "Send completions flushed (mlx5).";
        RespondedCqeFlushErrors "resp_cqe_flush_error" "Receive completions flushed (mlx5).";
        EcnMarked "np_ecn_marked_roce_packets" "RoCE packets received with a CE mark (mlx5).";
        SentCnps "np_cnp_sent" "CNPs sent (mlx5).";
        HandledCnps "rp_cnp_handled" "CNPs received and given to the controller (mlx5).";
        ReadRequests "rx_read_requests" "READ requests received (mlx5).";
        WriteRequests "rx_write_requests" "WRITE requests received (mlx5).";
        AtomicRequests "rx_atomic_requests" "Atomic requests received (mlx5).";
        Migrations "path_migrations" "Automatic path migrations.";
        LinkDowned "link_downed" "Times the port went down (rxe).";
        DirectRequests "direct_requests" "Requests to QPs of the same host that the requester executed itself, without packets. The requester's process counts both sides: the target does not know of them.";
        IgnoredTrailers "telemetry_ignored" "Telemetry trailers taken off and not used: of a kind that does not fit the packet, or nobody here asked for it.";
        TelemetryFallbacks "telemetry_fallbacks" "QPs whose controller needs telemetry, heard none, and became without_telemetry.";
        SolvedIpIds "solved_ip_ids" "Packets whose IPv4 ID had to be solved for, to check the ICRC.";
    }
}
