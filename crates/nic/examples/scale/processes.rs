//! Many processes: as many open queue pairs as several can have together, and several that send at the same time.

use super::pair::{World, cost_ns, on_processor, take_all};
use super::{Limits, Table, count, ratio};
use scalefabric_verbs::QueuePair;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

/// Queue pairs of one process, at most: less than a device has.
const OF_ONE: u32 = 25_000;

/// Another process of this program.
struct Other {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Other {
    fn start(arguments: &[String]) -> Self {
        let program = std::env::current_exe().expect("this program");
        let mut command = Command::new(program);
        let mut child =
            command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let said = BufReader::new(child.stdout.take().expect("its output"));
        Self { child, said }
    }

    /// Lets it go on.
    fn tell(&mut self) {
        self.child.stdin.as_mut().expect("its input").write_all(b"\n").expect("it reads");
    }

    /// The numbers of its next line.
    fn hear(&mut self) -> Vec<f64> {
        let mut line = String::new();
        self.said.read_line(&mut line).expect("it speaks");
        line.split_whitespace().map(|word| word.parse().expect("a number")).collect()
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().expect("it ends").success(), "a process failed");
    }
}

/// Waits for a line of whoever started this process.
fn told() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("a line");
}

/// One of several: makes queue pairs, connects them, and ends them, each when it is told; prints µs of processor time for one.
pub fn open(number: u32) {
    let world = World::new();
    let cq = world.cq(64);
    let timed = |work: &mut dyn FnMut()| {
        told();
        let before = on_processor();
        work();
        println!("{}", (on_processor() - before).as_secs_f64() * 1e6 / f64::from(number));
    };
    let mut queue_pairs: Vec<Arc<dyn QueuePair>> = Vec::with_capacity(number as usize);
    println!();
    timed(&mut || queue_pairs.extend((0..number).map(|_| world.make(&cq, None, 16).expect("a queue pair"))));
    timed(&mut || queue_pairs.iter().for_each(|one| world.connect(&**one).expect("it is connected")));
    timed(&mut || queue_pairs.iter().for_each(|one| one.destroy().expect("it ends")));
}

/// As many queue pairs as are asked for, in as many processes as they need.
pub fn made_and_ended(limits: &Limits) -> Table {
    let mut table = Table::new(
        "N queue pairs made, connected and ended",
        &["N", "processes", "make one, us", "connect one, us", "end one, us", "all of it, s"],
    );
    for n in [100, 1_000, 10_000, 100_000].into_iter().filter(|n| *n <= limits.most) {
        let processes = n.div_ceil(OF_ONE);
        let each = n / processes;
        let mut others: Vec<Other> =
            (0..processes).map(|_| Other::start(&["--open".into(), each.to_string()])).collect();
        others.iter_mut().for_each(|other| drop(other.hear()));
        let begin = Instant::now();
        let mut cells = vec![count(n), processes.to_string()];
        for _ in 0..3 {
            others.iter_mut().for_each(Other::tell);
            let sum: f64 = others.iter_mut().map(|other| other.hear()[0]).sum();
            cells.push(format!("{:.1}", sum / f64::from(processes)));
        }
        cells.push(format!("{:.2}", begin.elapsed().as_secs_f64()));
        others.into_iter().for_each(Other::end);
        table.row(cells);
    }
    table
}

/// One of several: sends when it is told; prints ns of processor time for a WRITE, and WRITEs a second.
pub fn send(limits: &Limits) {
    let world = World::new();
    let cq = world.cq(64);
    let queue_pair = world.connected(1, &cq).remove(0);
    let request = [World::write(&*world.region)];
    println!();
    told();
    let (begin, mut done) = (Instant::now(), 0u64);
    let cost = cost_ns(limits.ms, || {
        queue_pair.post_send(&request).expect("post");
        take_all(&*cq, 1);
        done += 1;
        1
    });
    println!("{cost} {}", done as f64 / begin.elapsed().as_secs_f64());
}

/// Processes that send at the same time, each on a device of its own.
pub fn sending(limits: &Limits) -> Table {
    let mut table = Table::new(
        "8 B WRITEs of P processes at the same time, one under way in each",
        &["P", "WRITEs a second of all", "rate / that of 1", "ns of processor for one"],
    );
    let mut first = None;
    for processes in [1, 2, 4, 8, 16] {
        let arguments = ["--send".to_owned(), "--ms".to_owned(), limits.ms.to_string()];
        let mut others: Vec<Other> = (0..processes).map(|_| Other::start(&arguments)).collect();
        others.iter_mut().for_each(|other| drop(other.hear()));
        others.iter_mut().for_each(Other::tell);
        let told: Vec<Vec<f64>> = others.iter_mut().map(Other::hear).collect();
        others.into_iter().for_each(Other::end);
        let cost = told.iter().map(|numbers| numbers[0]).sum::<f64>() / f64::from(processes);
        let all: f64 = told.iter().map(|numbers| numbers[1]).sum();
        let first = *first.get_or_insert(all);
        table.row([count(processes), format!("{all:.0}"), ratio(all / first), format!("{cost:.0}")]);
    }
    table
}
