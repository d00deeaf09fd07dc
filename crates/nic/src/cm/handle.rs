//! Channels and identifiers as applications hold them: names of what the agent keeps. Dropping an identifier's handle does
//! nothing, as in C; dropping the last handle of a channel closes it.

use std::any::Any;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use scalefabric_verbs::event::EventType;
use scalefabric_verbs::{
    CmAddr, CmAddresses, CmChannel, CmEvent, CmId, CmOption, ConnParam, Ece, Errno, JoinFlags, PathRecord, PortSpace,
    QpAttr, QpAttrMask, QpState, QpType, VerbsError,
};

use super::active::{begin, ip_address, look_up};
use super::agent::{Agent, Line};
use super::id::{Id, Stage, no_such};
use super::passive::any;
use crate::completion::EventQueue;
use crate::provider::SoftwareProvider;

/// An event channel.
#[derive(Debug)]
pub(super) struct Channel {
    agent: Arc<Agent>,
    number: u32,
    events: Arc<EventQueue<CmEvent>>,
    provider: SoftwareProvider,
}

impl Channel {
    pub(super) fn open(provider: &SoftwareProvider) -> Result<Arc<dyn CmChannel>, VerbsError> {
        let agent = Agent::get()?;
        let events = Arc::new(EventQueue::new()?);
        let number = {
            let mut state = agent.lock();
            let number = state.channel_number();
            state.channels.insert(number, Line { events: events.clone(), ids: BTreeSet::new() });
            number
        };
        Ok(Arc::new(Self { agent, number, events, provider: provider.clone() }))
    }

    fn take(&self) -> Result<Option<CmEvent>, VerbsError> {
        // Under the lock, so that nobody destroys the identifier between the taking and the counting.
        let mut state = self.agent.enter()?;
        let event = self.events.take();
        event.iter().for_each(|event| state.reported(event));
        Ok(event)
    }
}

impl CmChannel for Channel {
    fn fd(&self) -> i32 {
        self.events.fd()
    }

    fn get_event(&self, timeout: Option<Duration>) -> Result<Option<CmEvent>, VerbsError> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if let Some(event) = self.take()? {
                return Ok(Some(event));
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            self.events.sleep(left);
        }
    }

    fn create_id(&self, space: PortSpace, qp_type: QpType, uid: u64) -> Result<Arc<dyn CmId>, VerbsError> {
        let mut state = self.agent.enter()?;
        if !state.channels.contains_key(&self.number) {
            return Err(VerbsError::invalid("the event channel is closed"));
        }
        let number = state.number();
        let mut id = Id::new(number, self.number, self.provider.clone(), space, space.qp_type(qp_type));
        id.uid = uid;
        state.enrol(id);
        drop(state);
        Ok(Handle::of(&self.agent, number))
    }

    fn find_id(&self, id: u32) -> Result<Arc<dyn CmId>, VerbsError> {
        match self.agent.enter()?.ids.get(&id).map(|id| id.channel) {
            Some(channel) if channel == self.number => Ok(Handle::of(&self.agent, id)),
            Some(_) => Err(VerbsError::invalid(format!("identifier {id} belongs to another channel"))),
            None => Err(VerbsError::misuse(Errno::ENOENT, format!("there is no identifier {id}"))),
        }
    }

    fn leave_multicast(&self, multicast_id: u32) -> Result<u32, VerbsError> {
        let mut state = self.agent.enter()?;
        let of = state.joins.get(&multicast_id).map(|join| join.id);
        if of.and_then(|id| state.ids.get(&id)).is_some_and(|id| id.channel != self.number) {
            return Err(VerbsError::invalid(format!("join {multicast_id} belongs to another channel")));
        }
        state.leave(multicast_id)
    }

    fn close(&self) {
        let Ok(mut state) = self.agent.enter() else { return };
        let own = state.channels.get(&self.number).map(|line| line.ids.clone()).unwrap_or_default();
        for id in own {
            // A request's new identifier goes with its listener.
            let _ = state.destroy(id);
        }
        state.channels.remove(&self.number);
        self.events.forget(|_| true);
        drop(state);
        self.agent.look();
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.close();
    }
}

/// An identifier.
#[derive(Debug)]
pub(super) struct Handle {
    agent: Arc<Agent>,
    number: u32,
}

impl Handle {
    pub(super) fn of(agent: &Arc<Agent>, number: u32) -> Arc<dyn CmId> {
        Arc::new(Self { agent: agent.clone(), number })
    }

    /// Reads something of the identifier; `EINVAL` if it is destroyed.
    fn look<R>(&self, read: impl FnOnce(&Id) -> R) -> Result<R, VerbsError> {
        self.agent.enter()?.ids.get(&self.number).map(read).ok_or_else(|| no_such(self.number))
    }

    /// Reads something of the identifier if its stage allows it.
    fn look_if<R>(&self, read: impl FnOnce(&Id) -> Result<R, VerbsError>) -> Result<R, VerbsError> {
        self.look(read)?
    }

    /// Binds an identifier that is not bound; to be called without the lock.
    fn bind(&self, address: SocketAddr) -> Result<(), VerbsError> {
        let provider = self.look_if(|id| {
            id.expect("bind_addr", &[Stage::Idle])?;
            Ok(id.provider.clone())
        })?;
        let bound = look_up(&provider, address)?;
        self.agent.enter()?.bind(self.number, bound)
    }
}

impl CmId for Handle {
    fn id(&self) -> u32 {
        self.number
    }

    fn port_space(&self) -> PortSpace {
        self.look(|id| id.space).unwrap_or(PortSpace::Tcp)
    }

    fn qp_type(&self) -> QpType {
        self.look(|id| id.qp_type).unwrap_or(QpType::Rc)
    }

    fn uid(&self) -> u64 {
        self.look(|id| id.uid).unwrap_or(0)
    }

    fn set_uid(&self, uid: u64) {
        if let Ok(mut state) = self.agent.enter()
            && let Ok(id) = state.id(self.number)
        {
            id.uid = uid;
        }
    }

    fn bind_addr(&self, address: CmAddr) -> Result<(), VerbsError> {
        self.bind(ip_address(address)?)
    }

    fn resolve_addr(&self, source: Option<CmAddr>, destination: CmAddr, _timeout_ms: u32) -> Result<(), VerbsError> {
        let source = source.map(ip_address).transpose()?;
        let to = ip_address(destination)?;
        if source.is_some_and(|source| source.is_ipv4() != to.is_ipv4()) {
            return Err(VerbsError::invalid("source and destination are of different IP versions"));
        }
        let (provider, local) = self.look_if(|id| {
            id.expect("resolve_addr", &[Stage::Idle, Stage::AddrBound])?;
            Ok((id.provider.clone(), id.local))
        })?;
        let found = begin(&provider, local.or(source), to);
        let mut state = self.agent.enter()?;
        match found {
            Ok((to, bound)) => state.resolved(self.number, to, Ok(bound)),
            Err(error) => state.resolved(self.number, to, Err(error)),
        }
    }

    fn resolve_route(&self, _timeout_ms: u32) -> Result<(), VerbsError> {
        self.agent.enter()?.resolve_route(self.number)
    }

    fn listen(&self, backlog: u32) -> Result<(), VerbsError> {
        if self.look(|id| id.stage == Stage::Idle)? {
            self.bind(any())?;
        }
        self.agent.enter()?.listen(self.number, backlog)
    }

    fn connect(&self, param: &ConnParam) -> Result<(), VerbsError> {
        self.agent.enter()?.connect(self.number, param)?;
        self.agent.look();
        Ok(())
    }

    fn accept(&self, param: Option<&ConnParam>, uid: Option<u64>, ece: Ece) -> Result<(), VerbsError> {
        self.agent.enter()?.accept(self.number, param, uid, ece)?;
        self.agent.look();
        Ok(())
    }

    fn reject(&self, private_data: &[u8], reason: u8) -> Result<(), VerbsError> {
        self.agent.enter()?.reject(self.number, private_data, reason)?;
        self.agent.look();
        Ok(())
    }

    fn disconnect(&self) -> Result<(), VerbsError> {
        self.agent.enter()?.disconnect(self.number)?;
        self.agent.look();
        Ok(())
    }

    fn init_qp_attr(&self, state: QpState) -> Result<(QpAttr, QpAttrMask), VerbsError> {
        self.agent.enter()?.init_qp_attr(self.number, state)
    }

    fn query_addr(&self) -> CmAddresses {
        self.agent.enter().map_or_else(|_| CmAddresses::default(), |state| state.addresses(self.number))
    }

    fn query_route(&self) -> Vec<PathRecord> {
        self.look(|id| id.route.into_iter().collect()).unwrap_or_default()
    }

    fn set_option(&self, option: CmOption) -> Result<(), VerbsError> {
        self.agent.enter()?.set_option(self.number, option)
    }

    fn notify(&self, event: EventType) -> Result<(), VerbsError> {
        match event {
            EventType::CommEst => self.agent.enter()?.communicate(self.number),
            // The kernel takes any event and does something for this one only.
            _ => self.look(|_| ()),
        }
    }

    fn join_multicast(&self, address: CmAddr, flags: JoinFlags, uid: u64) -> Result<u32, VerbsError> {
        self.agent.enter()?.join(self.number, ip_address(address)?, flags, uid)
    }

    fn set_local_ece(&self, ece: Ece) -> Result<(), VerbsError> {
        self.agent.enter()?.id(self.number)?.local_ece = ece;
        Ok(())
    }

    fn remote_ece(&self) -> Ece {
        self.look(|id| id.remote_ece).unwrap_or_default()
    }

    fn migrate(&self, to: &Arc<dyn CmChannel>) -> Result<u32, VerbsError> {
        let to = to.as_any().downcast_ref::<Channel>().ok_or_else(|| {
            VerbsError::invalid("the channel belongs to another backend: identifiers move within one")
        })?;
        self.agent.enter()?.migrate(self.number, to.number)
    }

    fn destroy(&self) -> Result<u32, VerbsError> {
        let reported = self.agent.enter()?.destroy(self.number)?;
        self.agent.look();
        Ok(reported)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
