//! What every exchange must do, whatever is behind it. Each case takes a listener's and a dialler's exchange and an address to listen at.

use scalefabric_fabric::exchange::{Channel, Exchange, Listener, MAX_MESSAGE};
use scalefabric_fabric::{FabricError, Fault};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// An exchange under test.
#[derive(Clone)]
pub struct Subject {
    pub listening: Arc<dyn Exchange>,
    pub dialling: Arc<dyn Exchange>,
    /// Where to listen; a number in the place of `#`, other for each case.
    pub address: String,
    /// What the two sides must see of each other: the dialler's name, the listener's name, whether proved.
    pub names: (String, String, bool),
}

impl Subject {
    async fn listen(&self, case: u32) -> Box<dyn Listener> {
        self.listening.listen(&self.address.replace('#', &case.to_string())).await.expect("listens")
    }

    async fn pair(&self, listener: &mut Box<dyn Listener>) -> (Box<dyn Channel>, Box<dyn Channel>) {
        let address = listener.address();
        let (here, there) = tokio::join!(self.dialling.dial(&address), listener.accept());
        (here.expect("dials"), there.expect("accepts"))
    }
}

/// All cases, one after the other.
pub async fn run(subject: &Subject) {
    messages_arrive_whole_in_order_and_once(subject).await;
    both_sides_may_send_before_they_read(subject).await;
    lengths_outside_the_limits_are_refused_and_harm_nothing(subject).await;
    what_was_sent_before_closing_arrives(subject).await;
    a_receive_that_is_given_up_loses_nothing(subject).await;
    nobody_there_is_unreachable(subject).await;
    many_peers_have_channels_of_their_own(subject).await;
    an_accept_that_is_given_up_loses_nobody(subject).await;
    a_dial_that_is_given_up_leaves_nothing_behind(subject).await;
}

fn message(number: u32, length: usize) -> Vec<u8> {
    (0..length).map(|index| (number as usize * 31 + index) as u8).collect()
}

async fn messages_arrive_whole_in_order_and_once(subject: &Subject) {
    let mut listener = subject.listen(1).await;
    let (mut here, mut there) = subject.pair(&mut listener).await;
    let (dialler, listening, proven) = &subject.names;
    assert_eq!((&there.peer().name, there.peer().proven, there.peer().local), (dialler, *proven, true));
    assert_eq!((&here.peer().name, here.peer().proven, here.peer().local), (listening, *proven, true));
    for number in 0..20 {
        let length = [1, 2, 1000, 16_384, 16_385, MAX_MESSAGE][number as usize % 6];
        let (ping, pong) = (message(number, length), message(number + 1000, length));
        here.send(&ping).await.unwrap();
        there.send(&pong).await.unwrap();
        assert!(there.receive().await.unwrap() == ping, "message {number} differs");
        assert!(here.receive().await.unwrap() == pong, "message {number} differs");
    }
    // A burst in one direction, with a reader who is behind.
    let burst = async {
        for number in 0..100 {
            here.send(&message(number, 500 + number as usize)).await.unwrap();
        }
    };
    let reads = async {
        for number in 0..100 {
            assert!(
                there.receive().await.unwrap() == message(number, 500 + number as usize),
                "message {number} differs"
            );
        }
    };
    tokio::join!(burst, reads);
}

/// The longest message is on its way in one direction, as far as it gets without a reader, when one starts in the other.
async fn both_sides_may_send_before_they_read(subject: &Subject) {
    let mut listener = subject.listen(9).await;
    let (mut here, mut there) = subject.pair(&mut listener).await;
    let (ping, pong) = (message(1, MAX_MESSAGE), message(2, MAX_MESSAGE));
    here.send(&ping).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    there.send(&pong).await.unwrap();
    assert!(there.receive().await.unwrap() == ping);
    assert!(here.receive().await.unwrap() == pong);
}

async fn lengths_outside_the_limits_are_refused_and_harm_nothing(subject: &Subject) {
    let mut listener = subject.listen(2).await;
    let (mut here, mut there) = subject.pair(&mut listener).await;
    assert_eq!(here.send(&[]).await.unwrap_err().fault, Fault::Misuse);
    assert_eq!(here.send(&vec![0; MAX_MESSAGE + 1]).await.unwrap_err().fault, Fault::Misuse);
    here.send(b"still there").await.unwrap();
    assert_eq!(there.receive().await.unwrap(), b"still there");
    for text in [format!("{here:?}"), format!("{there:?}"), format!("{listener:?}")] {
        assert!(!text.contains("still there"), "a message is printed: {text}");
    }
}

async fn what_was_sent_before_closing_arrives(subject: &Subject) {
    let mut listener = subject.listen(3).await;
    let (mut here, mut there) = subject.pair(&mut listener).await;
    // What we have not read must not destroy what the peer has not read.
    there.send(b"never read").await.unwrap();
    for number in 0..5 {
        here.send(&message(number, 10_000)).await.unwrap();
    }
    drop(here);
    for number in 0..5 {
        assert!(there.receive().await.unwrap() == message(number, 10_000));
    }
    for _ in 0..2 {
        assert_eq!(there.receive().await.unwrap_err().fault, Fault::Closed);
    }
}

/// Looks at a future once and gives it up.
fn once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

async fn a_receive_that_is_given_up_loses_nothing(subject: &Subject) {
    let mut listener = subject.listen(4).await;
    let (mut here, mut there) = subject.pair(&mut listener).await;
    let sender = tokio::spawn(async move {
        for number in 0..50 {
            here.send(&message(number, 3000)).await.unwrap();
        }
        here
    });
    let mut number = 0;
    while number < 50 {
        match once(there.receive()) {
            Some(came) => {
                assert!(came.unwrap() == message(number, 3000), "message {number} differs");
                number += 1;
            }
            None => tokio::task::yield_now().await,
        }
    }
    drop(sender.await.unwrap());
}

async fn nobody_there_is_unreachable(subject: &Subject) {
    let listener = subject.listen(5).await;
    let address = listener.address();
    drop(listener);
    // Some withdraw in the background: until then a dial may wait its time, which is long here.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let error = loop {
        match subject.dialling.dial(&address).await {
            Err(error) => break error,
            Ok(channel) => drop(channel),
        }
    };
    assert_eq!(error.fault, Fault::Unreachable, "{error}");
}

async fn many_peers_have_channels_of_their_own(subject: &Subject) {
    let mut listener = subject.listen(6).await;
    let address = listener.address();
    let dials: Vec<_> = (0..8_u8)
        .map(|number| {
            let (exchange, address) = (subject.dialling.clone(), address.clone());
            tokio::spawn(async move {
                let mut channel = exchange.dial(&address).await.unwrap();
                channel.send(&[number; 100]).await.unwrap();
                let answer = channel.receive().await.unwrap();
                assert_eq!(answer, [number + 100; 7]);
            })
        })
        .collect();
    let mut seen = Vec::new();
    // Held until all have read their answers.
    let mut channels = Vec::new();
    for _ in 0..8 {
        let mut channel = listener.accept().await.unwrap();
        let number = channel.receive().await.unwrap()[0];
        channel.send(&[number + 100; 7]).await.unwrap();
        seen.push(number);
        channels.push(channel);
    }
    for dial in dials {
        dial.await.unwrap();
    }
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2, 3, 4, 5, 6, 7]);
}

async fn an_accept_that_is_given_up_loses_nobody(subject: &Subject) {
    let mut listener = subject.listen(7).await;
    let address = listener.address();
    let exchange = subject.dialling.clone();
    let dial = tokio::spawn(async move { exchange.dial(&address).await.unwrap() });
    let mut there = loop {
        match once(listener.accept()) {
            Some(came) => break came.unwrap(),
            None => tokio::task::yield_now().await,
        }
    };
    let mut here = dial.await.unwrap();
    here.send(b"found").await.unwrap();
    assert_eq!(there.receive().await.unwrap(), b"found");
}

async fn a_dial_that_is_given_up_leaves_nothing_behind(subject: &Subject) {
    let mut listener = subject.listen(8).await;
    let address = listener.address();
    for looks in 0..12 {
        let mut dial = subject.dialling.dial(&address);
        for _ in 0..looks {
            if dial.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    let exchange = subject.dialling.clone();
    let dial = tokio::spawn(async move {
        let mut here = exchange.dial(&address).await.unwrap();
        here.send(b"the last").await.unwrap();
        here
    });
    // Those that were given up may come as errors or as channels that are closed or broken; then comes the one that was not.
    let came = loop {
        let channel: Result<Box<dyn Channel>, FabricError> = listener.accept().await;
        match channel {
            Ok(mut channel) => match channel.receive().await {
                Ok(message) => break message,
                Err(error) => assert!(matches!(error.fault, Fault::Closed | Fault::Unreachable), "{error}"),
            },
            Err(error) => assert!(matches!(error.fault, Fault::Peer | Fault::Unreachable), "{error}"),
        }
    };
    assert_eq!(came, b"the last");
    drop(dial.await.unwrap());
}
