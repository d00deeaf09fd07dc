//! How a process of an XRC domain is reached: a channel of an exchange, which stays open as long as this side lives, and is dialled again when something is to
//! be asked and it is gone. It knows nothing of QPs.

use super::meeting::{Answer, Ask, Hello, VERSION, Welcome, check, hear, say};
use crate::error::{FabricError, Fault};
use crate::exchange::{Channel, Exchange, Identity};
use std::fmt;
use std::sync::Arc;

/// The way to one process.
pub(in super::super) struct Line {
    exchange: Arc<dyn Exchange>,
    address: String,
    /// Who we are, and for which tenant.
    from: String,
    tenant: String,
    pub welcome: Welcome,
    pub identity: Identity,
    channel: tokio::sync::Mutex<Option<Box<dyn Channel>>>,
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").field("address", &self.address).field("from", &self.welcome.from).finish_non_exhaustive()
    }
}

impl Line {
    /// Dials, and hears who is there.
    pub async fn open(
        exchange: Arc<dyn Exchange>,
        address: &str,
        from: &str,
        tenant: &str,
    ) -> Result<Self, FabricError> {
        let (from, tenant) = (from.to_owned(), tenant.to_owned());
        let (channel, welcome) = greet(&*exchange, address, &from, &tenant).await?;
        let identity = channel.peer();
        let channel = tokio::sync::Mutex::new(Some(channel));
        Ok(Self { exchange, address: address.to_owned(), from, tenant, welcome, identity, channel })
    }

    /// Asks, and hears the answer. A channel that broke is dialled again, once; another process at the address is [`Fault::Peer`].
    pub(super) async fn ask(&self, ask: &Ask) -> Result<Answer, FabricError> {
        let mut place = self.channel.lock().await;
        if let Some(channel) = &mut *place {
            match talk(channel, ask).await {
                Ok(answer) => return Ok(answer),
                Err(error) if error.fault == Fault::Misuse => return Err(error),
                Err(_) => *place = None,
            }
        }
        let (mut channel, welcome) = greet(&*self.exchange, &self.address, &self.from, &self.tenant).await?;
        let identity = channel.peer();
        if welcome != self.welcome || (self.identity.proven && identity.name != self.identity.name) {
            return Err(FabricError::peer(format!(
                "{} is another process than before, `{}` and not `{}`: connect anew",
                self.address, welcome.from, self.welcome.from
            )));
        }
        let answer = talk(&mut channel, ask).await?;
        *place = Some(channel);
        Ok(answer)
    }
}

async fn talk(channel: &mut Box<dyn Channel>, ask: &Ask) -> Result<Answer, FabricError> {
    say(channel, ask).await?;
    hear(channel).await
}

async fn greet(
    exchange: &dyn Exchange,
    address: &str,
    from: &str,
    tenant: &str,
) -> Result<(Box<dyn Channel>, Welcome), FabricError> {
    let mut channel = exchange.dial(address).await?;
    let hello = Hello { version: VERSION, from: from.to_owned(), tenant: tenant.to_owned() };
    say(&mut channel, &hello).await?;
    let welcome = match hear(&mut channel).await? {
        Answer::Welcome(welcome) => welcome,
        answer => return Err(super::meeting::refused(answer)),
    };
    check(welcome.version, &[&welcome.from, &welcome.domain, &welcome.service])?;
    if welcome.srq_num > 0xff_ffff {
        return Err(FabricError::peer(format!("SRQ {:#x} has more than 24 bits", welcome.srq_num)));
    }
    Ok((channel, welcome))
}
