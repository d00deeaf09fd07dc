//! What a member does while it lives: it follows the interfaces, lets others in, sees them die, and takes over.

use super::*;

impl Duty for Membership {
    fn fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    fn serve(&self, now: Time) {
        let mut state = self.lock();
        match &state.role {
            Role::Host(_) => self.serve_as_host(&mut state, now),
            Role::Guest { .. } => self.serve_as_guest(&mut state, now),
            Role::Outcast => {}
        }
        flush_links(&mut state);
        self.watch_all(&state);
    }

    fn deadline(&self) -> Option<Time> {
        let state = self.lock();
        // A link whose other side had no room is tried again soon.
        let soon = |behind: bool| behind.then(|| clock::now().after(10_000_000));
        match &state.role {
            Role::Outcast => None,
            Role::Guest { link, answer_by, .. } => [*answer_by, soon(link.is_behind())].into_iter().flatten().min(),
            Role::Host(host) => {
                let gather = (!host.awaited.is_empty()).then_some(host.awaited_until);
                let behind = host.guests.values().any(|guest| guest.link.is_behind());
                [gather, host.retry_at, soon(behind)].into_iter().flatten().min()
            }
        }
    }
}

impl Membership {
    fn serve_as_guest(&self, state: &mut State, now: Time) {
        loop {
            let Role::Guest { link, answer_by, .. } = &mut state.role else { return };
            match link.receive() {
                Received::Message(Message::Hold { keys }, fds) => {
                    let mut new = false;
                    for (key, fd) in keys.into_iter().zip(fds) {
                        new |= state.held.insert(key, Arc::new(fd)).is_none();
                    }
                    if new {
                        self.meet(state);
                    }
                    if new && let Err(e) = self.spread(state) {
                        state.problems.push(format!("new sockets cannot be used: {e}"));
                    }
                }
                Received::Message(Message::Drop { port, local }, _) => self.drop_address(state, port, local),
                Received::Message(Message::Nudge | Message::Welcome { .. }, _) => {
                    *answer_by = None;
                    self.tell(state);
                }
                Received::Message(Message::Refuse { text }, _) => {
                    state.problems.push(format!("the device's new host refuses this process: {text}"));
                    state.role = Role::Outcast;
                    if let Some(core) = self.core.get().and_then(Weak::upgrade) {
                        core.fail_device();
                    }
                    return;
                }
                Received::Message(Message::Ask, fds) => {
                    if let Some(tool) = fds.first() {
                        self.report(tool);
                    }
                }
                Received::Message(_, _) => self.tell(state),
                Received::Closed => return self.host_is_gone(state, now),
                Received::Nothing => {
                    if answer_by.is_some_and(|by| by <= now) {
                        return self.host_is_gone(state, now);
                    }
                    return;
                }
            }
        }
    }

    /// The host's connection has ended: the first to say so in the segment takes over, the others go to it.
    fn host_is_gone(&self, state: &mut State, now: Time) {
        let Role::Guest { host: old, .. } = state.role else { return };
        let word = &self.segment.layout().host;
        let swap = word.compare_exchange(u32::from(old), u32::from(self.slot), Ordering::AcqRel, Ordering::Acquire);
        match swap {
            Ok(_) => {
                let alive = |slot: &u8| {
                    *slot != self.slot && *slot != old && self.segment.slot(*slot).state() == SlotState::Alive
                };
                let host = Host {
                    guests: HashMap::new(),
                    strangers: Vec::new(),
                    waiting: Vec::new(),
                    awaited: (1..=LAST_SLOT).filter(alive).collect(),
                    awaited_until: now.after(GATHER_NS),
                    monitor: Monitor::new().ok(),
                    // The interfaces may have changed while nobody looked.
                    retry_at: Some(now),
                };
                state.role = Role::Host(host);
                self.bury(state, old);
                self.serve_as_host(state, now);
            }
            Err(new) => {
                let Ok(mut link) = Link::connect(&self.name) else {
                    // Nobody listens at all: every socket of the listener is closed, which cannot be while we hold one.
                    // The backlog may be full for a moment.
                    if let Role::Guest { answer_by, .. } = &mut state.role {
                        *answer_by = Some(now.after(RETRY_NS));
                    }
                    return;
                };
                let pidfd = link::own_pidfd().ok().map(Arc::new);
                link.queue(&Message::Rejoin { version: VERSION, slot: self.slot }, pidfd.into_iter().collect());
                let held: Vec<_> = state.held.iter().map(|(key, fd)| (*key, fd.clone())).collect();
                link.queue_hold(&held);
                link.queue(&Message::Ready, Vec::new());
                let _ = link.flush();
                state.role = Role::Guest { link, host: new as u8, answer_by: Some(now.after(REJOIN_NS)) };
            }
        }
    }

    fn serve_as_host(&self, state: &mut State, now: Time) {
        if self.segment.layout().host.load(Ordering::Acquire) != u32::from(self.slot) && state.listener.is_some() {
            // Others gave us up while we were stopped: go to whom they chose.
            state.role = match Link::connect(&self.name) {
                Ok(link) => Role::Guest { link, host: self.slot, answer_by: None },
                Err(_) => return,
            };
            return self.host_is_gone(state, now);
        }
        self.accept(state);
        self.hear_strangers(state);
        self.hear_guests(state);
        let Role::Host(host) = &mut state.role else { return };
        if host.awaited_until <= now {
            // Who has not come back by now is dead; its link to the old host died with it.
            for slot in std::mem::take(&mut host.awaited) {
                self.bury(state, slot);
            }
        }
        let Role::Host(host) = &mut state.role else { return };
        if !host.awaited.is_empty() {
            return;
        }
        let changed = host.monitor.as_ref().is_none_or(|m| m.take().unwrap_or(true));
        if changed || host.retry_at.is_some_and(|at| at <= now) {
            host.retry_at = None;
            self.follow_interfaces(state, now);
        }
        self.let_in(state);
    }

    fn accept(&self, state: &mut State) {
        let (Some(listener), Role::Host(host)) = (&state.listener, &mut state.role) else { return };
        while let Some(link) = Link::accept(listener.as_raw_fd()) {
            // Another user's process can connect to an abstract socket, but nothing more.
            if link.peer().is_ok_and(|(_, uid)| uid == effective_uid()) {
                host.strangers.push(link);
            }
        }
    }

    /// Listens to connections that have not said yet what they want.
    fn hear_strangers(&self, state: &mut State) {
        let Role::Host(host) = &mut state.role else { return };
        let refuse = |mut link: Link, text: String| {
            link.queue(&Message::Refuse { text }, Vec::new());
            let _ = link.flush();
        };
        let version_text = |theirs: u32| {
            format!(
                "its processes share a segment of layout {VERSION}, this one has {theirs}: run one version of scaleFabric"
            )
        };
        let (mut returned, mut tools, mut tables) = (Vec::new(), Vec::new(), Vec::new());
        for link in std::mem::take(&mut host.strangers) {
            match link.receive() {
                Received::Nothing => host.strangers.push(link),
                Received::Closed => {}
                Received::Message(Message::Join { version, pid, start_time }, fds) => {
                    if version == VERSION {
                        host.waiting.push((link, fds.into_iter().next(), pid, start_time));
                    } else {
                        refuse(link, version_text(version));
                    }
                }
                Received::Message(Message::Rejoin { version, slot }, fds) => {
                    if version != VERSION {
                        refuse(link, version_text(version));
                    } else if self.segment.slot(slot).state() == SlotState::Alive {
                        returned.push((slot, Guest { link, pidfd: fds.into_iter().next() }));
                    } else {
                        refuse(link, format!("slot {slot} was given up: this process was silent for too long"));
                    }
                }
                Received::Message(Message::Survey { version }, _) => {
                    if version == VERSION {
                        tools.push(link);
                    } else {
                        refuse(link, version_text(version));
                    }
                }
                Received::Message(Message::Look { version }, _) if version == VERSION => {
                    if let Ok(segment) = self.segment.duplicate() {
                        let mut link = link;
                        link.queue(&Message::Roster { host: self.slot }, vec![Arc::new(segment)]);
                        let _ = link.flush();
                    }
                }
                Received::Message(Message::Look { version }, _) => refuse(link, version_text(version)),
                Received::Message(Message::SetPkeys { version, port, pkeys }, _) => {
                    let table = self.plan.ports.get(usize::from(port)).map(|_| self.segment.port(usize::from(port)));
                    match table {
                        _ if version != VERSION => refuse(link, version_text(version)),
                        Some(table) if pkeys.len() <= PKEYS => {
                            (0..).zip(&pkeys).for_each(|(index, pkey)| _ = table.set_pkey(index, PKey(*pkey)));
                            tables.push(link);
                        }
                        _ => {
                            let text = format!("{} P_Keys for port {}: a table has {PKEYS}", pkeys.len(), port + 1);
                            refuse(link, text);
                        }
                    }
                }
                Received::Message(_, _) => {}
            }
        }
        for mut link in tools {
            let (Ok(segment), Ok(tool)) = (self.segment.duplicate(), link.duplicate().map(Arc::new)) else { continue };
            link.queue(&Message::Roster { host: self.slot }, vec![Arc::new(segment)]);
            let _ = link.flush();
            for guest in host.guests.values_mut() {
                guest.link.queue(&Message::Ask, vec![tool.clone()]);
            }
            self.report(&tool);
        }
        for (slot, guest) in returned {
            self.watch(guest.link.fd());
            host.guests.insert(slot, guest);
        }
        if !tables.is_empty() {
            self.tell(state);
            self.nudge_others(state, None);
        }
        for mut link in tables {
            link.queue(&Message::Ready, Vec::new());
            let _ = link.flush();
        }
    }

    /// Tells a tool what this process has.
    fn report(&self, tool: &Descriptor) {
        let core = self.core.get().and_then(Weak::upgrade);
        let mut resources = core.map(|core| core.resources()).unwrap_or_default();
        resources.same_host = self.same_host();
        let text = survey::Answer::new(resources).encode();
        // A tool that does not take it has gone.
        let _ = link::report(tool, self.slot, &text);
    }

    fn hear_guests(&self, state: &mut State) {
        let Role::Host(host) = &mut state.role else { return };
        let (mut gone, mut nudged) = (Vec::new(), None);
        let mut returned = Vec::new();
        let mut offered = Vec::new();
        for (&slot, guest) in &mut host.guests {
            loop {
                match guest.link.receive() {
                    Received::Message(Message::Nudge, _) => nudged = Some(slot),
                    Received::Message(Message::Hold { keys }, fds) => offered.extend(keys.into_iter().zip(fds)),
                    Received::Message(Message::Ready, _) => returned.push(slot),
                    Received::Message(_, _) => {}
                    Received::Closed => gone.push(slot),
                    Received::Nothing => {
                        if guest.pidfd.as_ref().is_some_and(has_ended) {
                            gone.push(slot);
                        }
                    }
                }
                if gone.last() == Some(&slot) || !is_readable(guest.link.fd()) {
                    break;
                }
            }
        }
        // What only a returning member has: everybody must have it.
        let new: Vec<_> = offered
            .into_iter()
            .filter(|(key, _)| !state.held.contains_key(key))
            .map(|(key, fd)| (key, Arc::new(fd)))
            .collect();
        state.held.extend(new.iter().cloned());
        let all: Vec<_> = state.held.iter().map(|(key, fd)| (*key, fd.clone())).collect();
        for (slot, guest) in &mut host.guests {
            if returned.contains(slot) {
                host.awaited.remove(slot);
                guest.link.queue(&Message::Welcome { slot: *slot }, Vec::new());
                guest.link.queue_hold(&all);
                guest.link.queue(&Message::Ready, Vec::new());
            } else {
                guest.link.queue_hold(&new);
            }
        }
        if !new.is_empty() {
            self.meet(state);
        }
        if !new.is_empty()
            && let Err(e) = self.spread(state)
        {
            state.problems.push(format!("new sockets cannot be used: {e}"));
        }
        let others = !gone.is_empty();
        for slot in gone {
            self.bury(state, slot);
        }
        if nudged.is_some() || others {
            self.tell(state);
            // Who hears of a death lets go of what it had from that member.
            self.nudge_others(state, nudged.filter(|_| !others));
        }
    }

    /// A member is dead: what it left is thrown away and its slot is free.
    fn bury(&self, state: &mut State, slot: u8) {
        let Role::Host(host) = &mut state.role else { return };
        host.guests.remove(&slot);
        host.awaited.remove(&slot);
        let record = self.segment.slot(slot);
        record.set_state(SlotState::Dead);
        drain(state, slot);
        self.segment.retire_counters(slot);
        let orphans = self.segment.retire_connections(slot);
        record.set_state(SlotState::Free);
        if !orphans.is_empty()
            && let (Some(sink), Some(core)) = (self.orphans.get(), self.core.get().and_then(Weak::upgrade))
        {
            sink.take(&core, orphans);
        }
        self.meet(state);
    }

    /// Gives slots to those that wait for one.
    fn let_in(&self, state: &mut State) {
        let Role::Host(host) = &mut state.role else { return };
        for (mut link, pidfd, pid, start_time) in std::mem::take(&mut host.waiting) {
            let (Some(listener), Ok(segment)) = (state.listener.clone(), self.segment.duplicate()) else { continue };
            match self.make_slot(state) {
                Ok((slot, new)) => {
                    let record = self.segment.slot(slot);
                    record.pid.store(pid, Ordering::Relaxed);
                    record.start_time.store(start_time, Ordering::Relaxed);
                    record.generation.fetch_add(1, Ordering::Relaxed);
                    self.segment.hazard(slot).reset();
                    self.segment.give_out(slot);
                    record.set_state(SlotState::Alive);
                    let Role::Host(host) = &mut state.role else { return };
                    // The others first: a new socket must not live in the newcomer alone.
                    for guest in host.guests.values_mut() {
                        guest.link.queue_hold(&new);
                        let _ = guest.link.flush();
                    }
                    link.queue(&Message::Welcome { slot }, vec![Arc::new(segment), listener]);
                    let all: Vec<_> = state.held.iter().map(|(key, fd)| (*key, fd.clone())).collect();
                    link.queue_hold(&all);
                    link.queue(&Message::Ready, Vec::new());
                    let _ = link.flush();
                    host.guests.insert(slot, Guest { link, pidfd });
                    if let Err(e) = self.spread(state) {
                        state.problems.push(format!("new sockets cannot be used: {e}"));
                    }
                }
                Err(text) => {
                    link.queue(&Message::Refuse { text }, Vec::new());
                    let _ = link.flush();
                }
            }
        }
    }

    /// Makes the lowest free slot ready: drained if it was used before, else with sockets of its own, which are returned.
    fn make_slot(&self, state: &mut State) -> Result<(u8, Vec<HeldFd>), String> {
        let free = |slot: &u8| self.segment.slot(*slot).state() == SlotState::Free;
        let slot = (1..=LAST_SLOT)
            .find(free)
            .ok_or_else(|| format!("all {LAST_SLOT} slots are in use: that many processes share the device already"))?;
        let before: BTreeSet<_> = state.held.keys().map(|key| (key.kind, key.port, key.slot, key.local.ip)).collect();
        let mut locals: Vec<_> =
            state.held.keys().filter(|k| k.kind == Kind::Receive && k.slot == 1).copied().collect();
        locals.sort_by_key(|key| (key.port, key.local.ip));
        let mut opened = Vec::new();
        for local in locals {
            let key = Key { slot, ..local };
            if state.held.contains_key(&key) {
                continue;
            }
            match socket::open_receive(key.local, self.receive) {
                Ok(socket) => opened.push((key, Arc::new(socket))),
                // Those opened so far close again, each as the last of its group.
                Err(e) => return Err(format!("no further socket for {} can be opened: {e}", key.local.ip)),
            }
        }
        state.held.extend(opened);
        open_mailboxes(state, self.plan.ports.len() as u8, slot).map_err(|e| format!("no mailbox can be made: {e}"))?;
        drain(state, slot);
        let is_new = |key: &Key| !before.contains(&(key.kind, key.port, key.slot, key.local.ip));
        let new = state.held.iter().filter(|(key, _)| is_new(key)).map(|(key, fd)| (*key, fd.clone())).collect();
        Ok((slot, new))
    }

    fn drop_address(&self, state: &mut State, port: u8, local: LocalAddress) {
        state.held.retain(|key, _| !(key.kind == Kind::Receive && key.port == port && key.local == local));
        if let Err(e) = self.spread(state) {
            state.problems.push(format!("sockets cannot be given back: {e}"));
        }
        self.tell(state);
    }

    /// Brings sockets and tables in line with the network interfaces.
    fn follow_interfaces(&self, state: &mut State, now: Time) {
        let interfaces = match netlink::interfaces() {
            Ok(interfaces) => interfaces,
            Err(e) => {
                state.problems.push(format!("network interfaces cannot be listed: {e}"));
                if let Role::Host(host) = &mut state.role {
                    host.retry_at = Some(now.after(RETRY_NS));
                }
                return;
            }
        };
        let mut messages: Vec<(Message, Vec<HeldFd>)> = Vec::new();
        let mut retry = false;
        for (port, plan) in self.plan.ports.iter().enumerate() {
            let facts = discovery::facts(plan, &interfaces);
            let wanted: Vec<_> =
                facts.addresses.iter().map(|&ip| LocalAddress { ip, ifindex: facts.ifindex }).collect();
            let mine = |key: &&Key| key.kind == Kind::Receive && usize::from(key.port) == port && key.slot == 1;
            let there: Vec<_> = state.held.keys().filter(mine).map(|key| key.local).collect();
            let port = port as u8;
            for &local in there.iter().filter(|local| !wanted.contains(local)) {
                state.held.retain(|key, _| !(key.kind == Kind::Receive && key.port == port && key.local == local));
                messages.push((Message::Drop { port, local }, Vec::new()));
            }
            let top = state.held.keys().map(|key| key.slot).max().unwrap_or(1).max(1);
            for &local in wanted.iter().filter(|local| !there.contains(local)) {
                match open_address(state, self.receive, port, local, top) {
                    Ok(()) => {
                        let new = state
                            .held
                            .iter()
                            .filter(|(key, _)| key.kind == Kind::Receive && key.port == port && key.local == local);
                        messages.push((Message::Nudge, new.map(|(key, fd)| (*key, fd.clone())).collect()));
                    }
                    Err(e) if e.raw_os_error() == Some(libc::EADDRINUSE) => {
                        let text = holder::address_in_use(&self.plan.info.name, local.ip).message;
                        if !state.problems.contains(&text) {
                            state.problems.push(text);
                        }
                        retry = true;
                    }
                    Err(_) => retry = true,
                }
            }
            let record = self.segment.port(usize::from(port));
            let old = record.read();
            let mut tables = old.clone();
            for gid in update(&mut tables, &facts, &state.held, port) {
                state.problems.push(format!("the GID table of port {} is full: {gid} has no index", port + 1));
            }
            if tables != old {
                record.write(&tables);
                messages.push((Message::Nudge, Vec::new()));
            }
        }
        if retry && let Role::Host(host) = &mut state.role {
            host.retry_at = Some(now.after(RETRY_NS));
        }
        if messages.is_empty() {
            return;
        }
        // Sockets before tables: a GID must be usable when it appears.
        if let Err(e) = self.spread(state) {
            state.problems.push(format!("new sockets cannot be used: {e}"));
        }
        if let Role::Host(host) = &mut state.role {
            for guest in host.guests.values_mut() {
                for (message, held) in &messages {
                    guest.link.queue_hold(held);
                    guest.link.queue(message, Vec::new());
                }
            }
        }
        self.tell(state);
    }
}

/// Throws away what waits for a slot.
fn drain(state: &State, slot: u8) {
    for (key, fd) in state.held.iter().filter(|(key, _)| key.slot == slot) {
        if matches!(key.kind, Kind::Receive | Kind::MailIn) {
            socket::drain(fd.as_raw_fd());
        }
    }
}

fn is_readable(fd: RawFd) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd.
    unsafe { libc::poll(&raw mut poll, 1, 0) > 0 }
}

/// True if the process of a pidfd has ended.
fn has_ended(pidfd: &Descriptor) -> bool {
    is_readable(pidfd.as_raw_fd())
}
