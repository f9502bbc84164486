//! A crowd of dags that are due in the same minute: from the minute's beginning to the start of each one's task.

use std::time::Duration;

use anyhow::{Result, ensure};
use jiff::{Timestamp, Unit, Zoned};

use super::Bench;
use super::site::{PATIENCE, Site};
use super::throughput::{CLIENTS, SETTINGS, each_of};
use crate::lease::boottime;
use crate::report::{Figure, Statistic};

const DAGS: usize = 2_000;
/// In a row, all with the same crowd.
const MINUTES: i8 = 3;
/// For all dags to be registered before the first of these minutes.
const PREPARATION: Duration = Duration::from_secs(100);

pub fn measure(bench: &mut Bench<'_>) -> Result<()> {
    eprintln!("{DAGS} dags due in each of {MINUTES} minutes");
    let site = Site::open(bench.options.binary, &bench.postgres, 1, &SETTINGS)?;
    site.client.pool("default_pool", 1_000_000)?;
    let agents = site.agents(4, Duration::ZERO)?;
    let first = first_minute()?;
    register(&site, &first)?;
    ensure!(Timestamp::now() < first.timestamp(), "registering {DAGS} dags took too long");

    let before = site.servers_cpu()?;
    // Both clocks run alike here; the starts are on one and the schedule on the other.
    let booted = Timestamp::now() - jiff::SignedDuration::try_from(boottime())?;
    let total = DAGS * MINUTES as usize;
    let until_end = Duration::try_from(first.timestamp().duration_since(Timestamp::now()))?
        + Duration::from_secs(60) * (MINUTES as u32);
    agents.wait("every dag's task in every minute", until_end + PATIENCE, || agents.started() >= total)?;
    let late: Vec<f64> = agents.starts(|starts| {
        let late = |at: Duration| {
            let since = (booted + jiff::SignedDuration::try_from(at).expect("boot was not long ago"))
                .duration_since(first.timestamp());
            since.as_secs_f64().rem_euclid(60.0) * 1_000.0
        };
        starts.iter().map(|start| late(start.at)).collect()
    });
    ensure!(late.len() == total, "{} starts of {total}", late.len());
    bench.figures.push(
        Figure::of(format!("{DAGS} dags due at once: due to started"), "ms", late, None)
            .at_most(Statistic::P99, 1_000.0),
    );
    let used = site.servers_cpu()? - before;
    let name = format!("{DAGS} dags due at once: processor of server");
    bench.figures.push(Figure::processor(name, "µs/task", used, total));
    let memory = site.servers_memory()?;
    bench.figures.push(Figure::one(format!("{DAGS} dags due at once: memory afterwards"), "MB", memory));
    Ok(())
}

/// A minute that leaves time for what comes before, and two more behind it in the same hour.
fn first_minute() -> Result<Zoned> {
    let mut minute = (Timestamp::now() + PREPARATION)
        .to_zoned(jiff::tz::TimeZone::UTC)
        .round(jiff::ZonedRound::new().smallest(Unit::Minute).mode(jiff::RoundMode::Ceil))?;
    while minute.minute() + MINUTES > 60 {
        minute = minute.checked_add(jiff::Span::new().minutes(1))?;
    }
    Ok(minute)
}

fn register(site: &Site, first: &Zoned) -> Result<()> {
    let (from, to) = (first.minute(), first.minute() + MINUTES - 1);
    let schedule = format!("{from}-{to} {} {} {} *", first.hour(), first.day(), first.month());
    let numbers: Vec<usize> = (0..DAGS).collect();
    each_of(&numbers, CLIENTS, |number| {
        let task = "tasks:\n  t: { exec: [\"true\"] }\n";
        site.client.register(&format!("id: due-{number:04}\nschedule: \"{schedule}\"\n{task}"), false)
    })
}
