//! The second process of the bench: it does what the first one tells it over its standard input, one JSON line each, and
//! answers on its standard output.

use crate::bench::rdma::{Connection, Service};
use crate::bench::{datagram, stream};
use crate::demo::endpoint::Side;
use crate::demo::exchange::PeerInfo;
use crate::demo::step::Transport;
use crate::failure::{During, Failure};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};

/// What the first process says.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Receive datagrams with GRO.
    DatagramSink,
    /// Send datagrams back.
    DatagramEcho,
    /// Take one TCP connection.
    StreamSink,
    /// Connect to this queue pair and serve.
    Rdma(PeerInfo, Service),
    /// End the present work.
    Stop,
}

/// What the second process answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Work begins at this address.
    At(SocketAddr),
    /// Work begins on this queue pair.
    QueuePair(PeerInfo),
    /// The work is over.
    Stopped,
    /// It could not be done.
    Failed(String),
}

/// The second process: works until its input ends.
pub fn run(side: &Side) -> Result<(), Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let orders = read_orders(Arc::clone(&stop));
    while let Ok(order) = orders.recv() {
        if matches!(order, Order::Stop) {
            continue;
        }
        let answer = match work(side, order, &stop) {
            Ok(()) => Answer::Stopped,
            Err(failure) => Answer::Failed(failure.to_string()),
        };
        // The order to stop has been seen, or comes yet and is skipped above.
        stop.store(false, Ordering::Relaxed);
        tell(&answer)?;
    }
    Ok(())
}

fn read_orders(stop: Arc<AtomicBool>) -> Receiver<Order> {
    let (give, take) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let Ok(order) = serde_json::from_str(&line) else { break };
            if matches!(order, Order::Stop) {
                stop.store(true, Ordering::Relaxed);
            } else if give.send(order).is_err() {
                break;
            }
        }
        std::process::exit(0);
    });
    take
}

fn work(side: &Side, order: Order, stop: &AtomicBool) -> Result<(), Failure> {
    match order {
        Order::DatagramSink | Order::DatagramEcho => {
            let socket = datagram::socket()?;
            tell(&Answer::At(socket.local_addr().during(|| "own address")?))?;
            if matches!(order, Order::DatagramSink) {
                datagram::sink(&socket, stop)
            } else {
                datagram::echo(&socket, stop)
            }
        }
        Order::StreamSink => {
            let listener = TcpListener::bind("127.0.0.1:0").during(|| "listen")?;
            tell(&Answer::At(listener.local_addr().during(|| "own address")?))?;
            stream::sink(&listener)
        }
        Order::Rdma(peer, service) => {
            let endpoint = side.endpoint(Transport::Rc)?;
            let local = endpoint.local.clone();
            let connection = Connection::new(side, endpoint, peer)?;
            tell(&Answer::QueuePair(local))?;
            connection.serve(service, stop)
        }
        Order::Stop => Ok(()),
    }
}

fn tell(answer: &Answer) -> Result<(), Failure> {
    let mut line = serde_json::to_string(answer).during(|| "write an answer")?;
    line.push('\n');
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes()).and_then(|()| out.flush()).during(|| "answer the first process")
}

/// The second process as the first one sees it. It ends with its handle.
pub struct Peer {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts it.
    pub fn start(device: &str) -> Result<Self, Failure> {
        let program = std::env::current_exe().during(|| "find the own program")?;
        let mut child = Command::new(program)
            .args(["bench", "--peer", "--device", device])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .during(|| "start the second process")?;
        let (Some(orders), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::failed("the second process has no pipes"));
        };
        Ok(Self { child, orders, answers: BufReader::new(answers) })
    }

    /// Gives an order and waits until the work begins.
    pub fn begin(&mut self, order: &Order) -> Result<Answer, Failure> {
        self.order(order)?;
        self.answer()
    }

    /// Ends the present work.
    pub fn stop(&mut self) -> Result<(), Failure> {
        self.order(&Order::Stop)?;
        self.wait_stopped()
    }

    /// Waits for the present work to end by itself.
    pub fn wait_stopped(&mut self) -> Result<(), Failure> {
        match self.answer()? {
            Answer::Stopped => Ok(()),
            other => Err(Failure::failed(format!("the second process answers {other:?} instead of having stopped"))),
        }
    }

    fn order(&mut self, order: &Order) -> Result<(), Failure> {
        let mut line = serde_json::to_string(order).during(|| "write an order")?;
        line.push('\n');
        self.orders.write_all(line.as_bytes()).during(|| "tell the second process")
    }

    fn answer(&mut self) -> Result<Answer, Failure> {
        let mut line = String::new();
        self.answers.read_line(&mut line).during(|| "hear the second process")?;
        match serde_json::from_str(&line) {
            Ok(Answer::Failed(why)) => Err(Failure::failed(format!("the second process: {why}"))),
            Ok(answer) => Ok(answer),
            Err(_) => Err(Failure::failed(format!("the second process ended or said `{}`", line.trim()))),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
