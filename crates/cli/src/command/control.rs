//! `sfab control`: a replica of the control plane, until Ctrl-C or SIGTERM.

use crate::failure::{During, Failure};
use crate::terminal::say;
use clap::Args;
use scalefabric_control::clock::{Clock, Machine};
use scalefabric_control::config::{self, StoreSettings};
use scalefabric_control::directory::feed::Health;
use scalefabric_control::service::Replica;
use scalefabric_control::store::{Embedded, Etcd, Store, StoreError};
use serde_json::json;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// The control plane: directory of connections and services, loads, orders. Data never passes through it, and what is connected works on without it.
#[derive(Args)]
#[command(after_help = "Examples:
  sfab control                                        one replica on this host, its state in a file
  sfab control --store /var/lib/scalefabric/control.store
  sfab control --name control-1 --etcd http://127.0.0.1:2379      any number of replicas over etcd
  sfab control --config /etc/scalefabric/control.toml
  curl http://127.0.0.1:7481/v1/status
  curl 'http://127.0.0.1:7481/v1/connections?tenant=red&limit=10'

Off loopback it needs certificates: docs/configuration.md.")]
pub struct Options {
    /// Configuration file (TOML); what is given here wins over it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Name of this replica, different from every other's [default: the host's]
    #[arg(long)]
    name: Option<String>,
    /// Where agents find it [default: 127.0.0.1:7480]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Where people and scripts find it [default: 127.0.0.1:7481]
    #[arg(long, value_name = "ADDRESS:PORT")]
    http: Option<SocketAddr>,
    /// File of the embedded store [default: scalefabric/control.store below $XDG_STATE_HOME, ~/.local/state, or /var/lib for root]
    #[arg(long, value_name = "FILE", conflicts_with = "etcd")]
    store: Option<PathBuf>,
    /// Member of an etcd that holds the state; may be given several times
    #[arg(long, value_name = "URL")]
    etcd: Vec<String>,
    /// JSON lines instead of sentences
    #[arg(long)]
    json: bool,
}

/// The command.
pub fn run(options: &Options) -> Result<(), Failure> {
    super::heap::few_heaps();
    let wrong = |error: config::Wrong| Failure::usage(error.to_string());
    let mut file: config::Control = match &options.config {
        Some(path) => config::read(path).map_err(wrong)?,
        None => config::Control::default(),
    };
    file.name = options.name.clone().or(file.name);
    file.listen = options.listen.or(file.listen);
    file.http = options.http.or(file.http);
    if options.store.is_some() || !options.etcd.is_empty() {
        file.store.embedded.clone_from(&options.store);
        file.store.etcd.clone_from(&options.etcd);
    }
    let settings = file.settings().map_err(wrong)?;
    settings.check().map_err(failure)?;
    let store = file.store(default_store).map_err(wrong)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .during(|| "start the threads of control")?;
    runtime.block_on(async {
        let clock: Arc<dyn Clock> = Arc::new(Machine::default());
        let store: Arc<dyn Store> = match store {
            StoreSettings::Embedded(path) => {
                if options.config.is_none()
                    && options.store.is_none()
                    && let Some(folder) = path.parent()
                {
                    std::fs::create_dir_all(folder).during(|| format!("make the folder {}", folder.display()))?;
                }
                Arc::new(Embedded::open(&path, Arc::clone(&clock)).map_err(failure)?)
            }
            StoreSettings::Etcd(settings) => Arc::new(Etcd::new(&settings).map_err(failure)?),
        };
        let mut ending = Box::pin(super::ending::asked());
        let replica = Replica::start(settings, store, clock).await.map_err(failure)?;
        tell(options.json, &replica);
        let outcome = tokio::select! {
            () = &mut ending => Ok(()),
            outcome = watch(options.json, &replica) => outcome,
        };
        replica.stop().await;
        outcome
    })
}

fn failure(error: StoreError) -> Failure {
    match error {
        StoreError::Invalid(why) => Failure::usage(why),
        other => Failure::failed(other.to_string()),
    }
}

fn default_store() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let root = std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    let state =
        set("XDG_STATE_HOME").or_else(|| if root { None } else { set("HOME").map(|home| home.join(".local/state")) });
    state.unwrap_or_else(|| "/var/lib".into()).join("scalefabric/control.store")
}

fn tell(as_json: bool, replica: &Replica) {
    let shared = &replica.shared;
    let http = replica.http.map(|address| address.to_string());
    if as_json {
        say!(
            "{}",
            json!({ "event": "listening", "replica": shared.name, "store": shared.store.kind(), "agents": replica.grpc.to_string(), "http": http })
        );
    } else {
        say!(
            "control `{}`, state in {}; agents: {}; HTTP: {}",
            shared.name,
            shared.store.kind(),
            replica.grpc,
            http.unwrap_or_else(|| "none".into())
        );
    }
}

/// Tells how the store is until it is broken.
async fn watch(as_json: bool, replica: &Replica) -> Result<(), Failure> {
    let mut health = replica.shared.feed.health();
    let mut told = None;
    loop {
        let now = health.borrow_and_update().clone();
        // What was tried again and is as it was, who reads a log needs once.
        if told.as_ref() != Some(&now) {
            tell_health(as_json, &now)?;
            told = Some(now);
        }
        if health.changed().await.is_err() {
            return Ok(());
        }
    }
}

fn tell_health(as_json: bool, now: &Health) -> Result<(), Failure> {
    let (state, why) = match now {
        Health::Starting => ("starting", None),
        Health::InSync => ("in sync", None),
        Health::Away(why) => ("away", Some(why)),
        Health::Broken(why) => return Err(Failure::failed(why.clone())),
    };
    if as_json {
        say!("{}", json!({ "event": "store", "state": state, "reason": why }));
    } else if *now != Health::Starting {
        let why = why.map(|why| format!(": {why}")).unwrap_or_default();
        say!("store {state}{why}");
    }
    Ok(())
}
