//! Runs scenarios: one, or all points of a sweep on several threads, each with a report that does not depend on how many there were. What was run before
//! can be taken from a folder, so that a sweep that was interrupted goes on.

use super::pause::Stuck;
use super::recorder::Recorder;
use super::report::Report;
use super::scenario::{Refusal, Scenario};
use super::timeline::Timeline;
use super::world::{End, World};

/// Runs one scenario. `progress` is called now and then with the fabric; false ends the run.
pub fn run(scenario: &Scenario, progress: &mut dyn FnMut(&World) -> bool) -> Result<Report, Refusal> {
    run_recorded(scenario, false, progress).map(|(report, _)| report)
}

/// Runs one scenario and makes the page of its time line, which large fabrics refuse.
pub fn run_with_timeline(
    scenario: &Scenario,
    progress: &mut dyn FnMut(&World) -> bool,
) -> Result<(Report, String), Refusal> {
    let (report, timeline) = run_recorded(scenario, true, progress)?;
    let page = timeline.map_or_else(String::new, |timeline| timeline.page(&report.title()));
    Ok((report, page))
}

fn run_recorded(
    scenario: &Scenario,
    with_timeline: bool,
    progress: &mut dyn FnMut(&World) -> bool,
) -> Result<(Report, Option<Timeline>), Refusal> {
    let mut world = scenario.world()?;
    let mut mix = scenario.traffic(&world)?;
    world.sample_every(scenario.sample);
    let mut recorder = Recorder::new(progress);
    if with_timeline {
        recorder.timeline = Some(Timeline::new(&world).map_err(Refusal)?);
    }
    let mut end: End = world.run(&mut mix, scenario.until, &mut recorder);
    // A failed run, and not a wrong file.
    if let messages @ 1.. = world.corrupted() {
        end = End::Stuck(Stuck::Corrupted { messages });
    }
    let report = Report::new(scenario, &world, &mix, &recorder, &end);
    Ok((report, recorder.timeline))
}

/// Runs many on `jobs` threads. `watch` hears of each that ended, with its index; reports come in the order of the scenarios.
pub fn run_all(
    scenarios: &[Scenario],
    jobs: usize,
    progress: &(dyn Fn(usize, &World) -> bool + Sync),
    watch: &(dyn Fn(usize, &Result<Report, Refusal>) + Sync),
) -> Vec<Result<Report, Refusal>> {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let results: Vec<std::sync::Mutex<Option<Result<Report, Refusal>>>> =
        scenarios.iter().map(|_| std::sync::Mutex::new(None)).collect();
    std::thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, scenarios.len().max(1)) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    let Some(scenario) = scenarios.get(index) else { return };
                    let result = run(scenario, &mut |world| progress(index, world));
                    watch(index, &result);
                    if let Ok(mut place) = results[index].lock() {
                        *place = Some(result);
                    }
                }
            });
        }
    });
    let missing = || Err(Refusal("the run was ended by a panic".to_owned()));
    results.into_iter().map(|place| place.into_inner().ok().flatten().unwrap_or_else(missing)).collect()
}
