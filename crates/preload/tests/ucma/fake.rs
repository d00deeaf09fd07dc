//! A backend that does nothing but write down what it is asked, and give the events that it is told to give.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use scalefabric_verbs::{
    AddressVector, CmAddr, CmAddresses, CmChannel, CmDevice, CmEvent, CmEventType, CmId, CmOption, ConnEvent,
    ConnParam, Ece, Errno, EventParam, EventType, Gid, JoinFlags, Mtu, PKey, PathRecord, PortSpace, QpAttr, QpAttrMask,
    QpState, QpType, VerbsError,
};

static NEXT: AtomicU32 = AtomicU32::new(1);

/// A channel with its identifiers and its queue.
#[derive(Debug)]
pub struct Channel {
    fd: i32,
    ids: Mutex<Vec<Arc<Id>>>,
    events: Mutex<VecDeque<CmEvent>>,
    /// Each call, in order.
    pub calls: Arc<Mutex<Vec<String>>>,
    me: Weak<Channel>,
}

#[derive(Debug)]
pub struct Id {
    id: u32,
    uid: AtomicU64,
    space: PortSpace,
    calls: Arc<Mutex<Vec<String>>>,
    channel: Mutex<Weak<Channel>>,
    reported: AtomicU32,
}

impl Channel {
    pub fn new() -> Arc<Self> {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_SEMAPHORE) };
        Arc::new_cyclic(|me| Self {
            fd,
            ids: Mutex::default(),
            events: Mutex::default(),
            calls: Arc::default(),
            me: me.clone(),
        })
    }

    /// An event of an identifier waits from now on.
    pub fn raise(&self, id: u32, event: CmEventType, private_data: &[u8]) {
        let uid = self.ids.lock().unwrap().iter().find(|known| known.id == id).map_or(0, |known| known.uid());
        let param = EventParam::Conn(ConnEvent { private_data: private_data.to_vec(), ..ConnEvent::default() });
        let ece = Ece { vendor_id: 0x15b3, attr_mod: 1 };
        self.push(CmEvent { event, status: -5, uid, id, listen_id: None, request: None, param, ece });
    }

    fn push(&self, event: CmEvent) {
        self.events.lock().unwrap().push_back(event);
        // SAFETY: eight bytes are passed.
        unsafe { libc::write(self.fd, (&raw const ONE).cast(), 8) };
    }

    pub fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }
}

static ONE: u64 = 1;

fn note(calls: &Mutex<Vec<String>>, call: String) {
    calls.lock().unwrap().push(call);
}

impl CmChannel for Channel {
    fn fd(&self) -> i32 {
        self.fd
    }

    fn get_event(&self, timeout: Option<Duration>) -> Result<Option<CmEvent>, VerbsError> {
        assert_eq!(timeout, Some(Duration::ZERO), "the file waits by itself");
        let event = self.events.lock().unwrap().pop_front();
        if let Some(event) = &event {
            let mut count = 0_u64;
            // SAFETY: eight bytes are there.
            unsafe { libc::read(self.fd, (&raw mut count).cast(), 8) };
            if let Some(id) = self.ids.lock().unwrap().iter().find(|id| id.id == event.id) {
                id.reported.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(event)
    }

    fn create_id(&self, space: PortSpace, qp_type: QpType, uid: u64) -> Result<Arc<dyn CmId>, VerbsError> {
        note(&self.calls, format!("create_id {space:?} {qp_type:?} {uid}"));
        let id = Arc::new(Id {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            uid: AtomicU64::new(uid),
            space,
            calls: Arc::clone(&self.calls),
            channel: Mutex::new(self.me.clone()),
            reported: AtomicU32::new(0),
        });
        self.ids.lock().unwrap().push(Arc::clone(&id));
        Ok(id)
    }

    fn find_id(&self, id: u32) -> Result<Arc<dyn CmId>, VerbsError> {
        let ids = self.ids.lock().unwrap();
        let found = ids.iter().find(|known| known.id == id);
        found.map(|id| Arc::clone(id) as _).ok_or_else(|| VerbsError::misuse(Errno::ENOENT, "no such identifier"))
    }

    fn leave_multicast(&self, multicast_id: u32) -> Result<u32, VerbsError> {
        note(&self.calls, format!("leave {multicast_id}"));
        Ok(3)
    }

    fn close(&self) {
        note(&self.calls, "close".to_owned());
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Id {
    fn note(&self, call: String) -> Result<(), VerbsError> {
        note(&self.calls, call);
        Ok(())
    }
}

/// A path that each identifier has.
pub fn path() -> PathRecord {
    PathRecord {
        dgid: Gid([2; 16]),
        sgid: Gid([1; 16]),
        flow_label: 5,
        hop_limit: 64,
        traffic_class: 0,
        pkey: PKey::DEFAULT,
        sl: 0,
        mtu: Mtu::Mtu1024,
        rate: 7,
        packet_life_time: 18,
        reversible: true,
    }
}

impl CmId for Id {
    fn id(&self) -> u32 {
        self.id
    }
    fn port_space(&self) -> PortSpace {
        self.space
    }
    fn qp_type(&self) -> QpType {
        QpType::Rc
    }
    fn uid(&self) -> u64 {
        self.uid.load(Ordering::Relaxed)
    }
    fn set_uid(&self, uid: u64) {
        self.uid.store(uid, Ordering::Relaxed);
    }
    fn bind_addr(&self, address: CmAddr) -> Result<(), VerbsError> {
        match address {
            CmAddr::Ip(ip) => self.note(format!("bind {ip}")),
            CmAddr::Ib(_) => Err(VerbsError::misuse(Errno::EADDRNOTAVAIL, "no AF_IB")),
        }
    }
    fn resolve_addr(&self, source: Option<CmAddr>, destination: CmAddr, timeout_ms: u32) -> Result<(), VerbsError> {
        self.note(format!("resolve_addr {source:?} {destination:?} {timeout_ms}"))
    }
    fn resolve_route(&self, timeout_ms: u32) -> Result<(), VerbsError> {
        self.note(format!("resolve_route {timeout_ms}"))
    }
    fn listen(&self, backlog: u32) -> Result<(), VerbsError> {
        self.note(format!("listen {backlog}"))
    }
    fn connect(&self, param: &ConnParam) -> Result<(), VerbsError> {
        self.note(format!("connect {:?} qp {:?}", param.private_data, param.qp_num.get()))
    }
    fn accept(&self, param: Option<&ConnParam>, uid: Option<u64>, ece: Ece) -> Result<(), VerbsError> {
        self.note(format!("accept {} {uid:?} {:#x}", param.is_some(), ece.vendor_id))
    }
    fn reject(&self, private_data: &[u8], reason: u8) -> Result<(), VerbsError> {
        self.note(format!("reject {private_data:?} {reason}"))
    }
    fn disconnect(&self) -> Result<(), VerbsError> {
        self.note("disconnect".to_owned())
    }
    fn init_qp_attr(&self, state: QpState) -> Result<(QpAttr, QpAttrMask), VerbsError> {
        let ah_attr = AddressVector {
            dgid: Gid([2; 16]),
            sgid_index: 1,
            hop_limit: 64,
            traffic_class: 0,
            flow_label: 0,
            sl: 0,
            static_rate: 0,
            port_num: 1,
        };
        let attr = QpAttr { qp_state: state, path_mtu: Mtu::Mtu1024, ah_attr, timeout: 19, ..QpAttr::default() };
        Ok((attr, QpAttrMask::STATE | QpAttrMask::AV | QpAttrMask::PATH_MTU | QpAttrMask::TIMEOUT))
    }
    fn query_addr(&self) -> CmAddresses {
        CmAddresses {
            local: Some(CmAddr::Ip("10.0.0.1:100".parse().unwrap())),
            peer: Some(CmAddr::Ip("10.0.0.2:200".parse().unwrap())),
            device: Some(CmDevice {
                name: "sf0".to_owned(),
                node_guid: 0x0200_00ff_fe00_0001,
                index: 4,
                port_num: 1,
                pkey: PKey::DEFAULT,
            }),
            gids: (Gid([1; 16]), Gid([2; 16])),
        }
    }
    fn query_route(&self) -> Vec<PathRecord> {
        vec![path()]
    }
    fn set_option(&self, option: CmOption) -> Result<(), VerbsError> {
        self.note(format!("set_option {option:?}"))
    }
    fn notify(&self, event: EventType) -> Result<(), VerbsError> {
        self.note(format!("notify {event:?}"))
    }
    fn join_multicast(&self, address: CmAddr, flags: JoinFlags, uid: u64) -> Result<u32, VerbsError> {
        self.note(format!("join {address:?} {flags:?} {uid}"))?;
        Ok(77)
    }
    fn set_local_ece(&self, ece: Ece) -> Result<(), VerbsError> {
        self.note(format!("set_local_ece {:#x}", ece.vendor_id))
    }
    fn remote_ece(&self) -> Ece {
        Ece::default()
    }
    fn migrate(&self, to: &Arc<dyn CmChannel>) -> Result<u32, VerbsError> {
        let to = to.as_any().downcast_ref::<Channel>().unwrap();
        let mut at = self.channel.lock().unwrap();
        let from = at.upgrade().unwrap();
        *at = to.me.clone();
        let mut ids = from.ids.lock().unwrap();
        let place = ids.iter().position(|id| id.id == self.id).unwrap();
        to.ids.lock().unwrap().push(ids.remove(place));
        Ok(self.reported.load(Ordering::Relaxed))
    }
    fn destroy(&self) -> Result<u32, VerbsError> {
        self.note("destroy".to_owned())?;
        let channel = self.channel.lock().unwrap().upgrade().unwrap();
        channel.ids.lock().unwrap().retain(|id| id.id != self.id);
        Ok(self.reported.load(Ordering::Relaxed))
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}
