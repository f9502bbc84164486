//! How fast ownership moves, and what holding it costs.
//!
//! Candidates are processes of their own on a real Postgres (flushing to disk) and a real etcd. A time runs from the
//! signal to the moment at which the successor's first write under the new fence was committed, on the machine's
//! boot-time clock, which both processes read.

pub mod member;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};
use tenure_clock::Entropy;
use tenure_model::{DagSpec, TaskKind, TaskSpec, TenantId};
use tenure_store::{DagRegistration, IntentStore, Trigger};
use tenure_store_postgres::{PostgresOptions, PostgresStore};
use tenure_testkit::{Etcd, Postgres, Settings};

use crate::report::{Figure, Machine, Report, Statistic};
use crate::server::{cpu_of, memory_of};
use member::{Candidate, Told};

/// What one waits for at most, whatever is measured.
const PATIENCE: Duration = Duration::from_secs(120);
/// As in production: crashes are told by hints, so the duration does not matter for them.
const LONG: Duration = Duration::from_secs(15);
/// For what waits for expiry. Above the 2 s after which the database ends a transaction that a frozen owner has left
/// open, as any duration in production is.
const SHORT: Duration = Duration::from_secs(3);
/// etcd's smallest.
const ETCD_TTL: Duration = Duration::from_secs(2);
const MANY: usize = 1_000;
/// Pairs that wait for expiry side by side.
const LANES: usize = 10;

pub fn boottime() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

pub fn measure(samples: usize) -> Result<Report> {
    let machine = Machine::here();
    let mut figures = vec![];
    let postgres = Postgres::own(Settings { fsync: true, extra: vec!["max_connections=300".into()] });
    let etcd = Etcd::start();
    let site = Site { server: postgres.url(), etcd: etcd.url() };

    eprintln!("on Postgres: crash, hand-over, freeze ({samples} each)");
    let crash = site.succession(samples, LONG, None, End::Crash)?;
    figures.push(
        Figure::millis("Postgres: kill -9 to the successor's first fenced write", &crash, None)
            .at_most(Statistic::P50, 50.0)
            .at_most(Statistic::P99, 250.0),
    );
    let clean = site.succession(samples, LONG, None, End::Clean)?;
    figures.push(
        Figure::millis("Postgres: SIGTERM to the successor's first fenced write", &clean, None)
            .at_most(Statistic::P99, 50.0),
    );
    let frozen = site.side_by_side(samples, SHORT, None, End::Freeze)?;
    figures.push(beyond("Postgres: SIGSTOP, beyond the duration of 3 s", &frozen, SHORT, 300.0));

    eprintln!("on etcd: hand-over, crash ({samples} each)");
    let clean = site.succession(samples, LONG, Some("clean"), End::Clean)?;
    figures.push(
        Figure::millis("etcd: SIGTERM to the successor's first fenced write", &clean, None)
            .at_most(Statistic::P99, 100.0),
    );
    let crash = site.side_by_side(samples, ETCD_TTL, Some("crash"), End::Crash)?;
    figures.push(beyond("etcd: kill -9, beyond the TTL of 2 s", &crash, ETCD_TTL, 500.0));

    eprintln!("{MANY} scopes: renewal, and shares of three members");
    site.many(&mut figures)?;
    Ok(Report { family: "lease".into(), machine, figures, skipped: vec![] })
}

/// How much longer than the lease itself it took; the goal is for the tail.
fn beyond(name: &str, samples: &[Duration], duration: Duration, goal: f64) -> Figure {
    let excess = |sample: &Duration| (sample.as_secs_f64() - duration.as_secs_f64()) * 1_000.0;
    Figure::of(name, "ms", samples.iter().map(excess).collect(), None).at_most(Statistic::P99, goal)
}

struct Site {
    server: String,
    etcd: String,
}

#[derive(Clone, Copy, PartialEq)]
enum End {
    Crash,
    Clean,
    Freeze,
}

impl Site {
    /// One owner after the other meets its end, and each time the standby's first write is awaited.
    fn succession(
        &self,
        samples: usize,
        duration: Duration,
        etcd_prefix: Option<&str>,
        end: End,
    ) -> Result<Vec<Duration>> {
        let database = self.fresh_database()?;
        let etcd = etcd_prefix.map(|prefix| format!("{}/bench-{prefix}/", self.etcd.trim_end_matches('/')));
        let candidate = |number: usize| Candidate {
            name: format!("candidate-{number}"),
            database: database.clone(),
            etcd: etcd.clone(),
            duration,
            scopes: 1,
        };
        let mut owner = Member::start(&candidate(0))?;
        owner.wrote()?;
        let mut times = vec![];
        for number in 1..=samples {
            let mut standby = Member::start(&candidate(number))?;
            standby.follows()?;
            // So that the end does not always meet the same moment between two renewals.
            std::thread::sleep(Duration::from_millis(40 + (number as u64 * 37) % 200));
            let at = boottime();
            owner.signal(match end {
                End::Crash => Signal::KILL,
                End::Clean => Signal::TERM,
                End::Freeze => Signal::STOP,
            })?;
            times.push(standby.wrote()?.saturating_sub(at));
            owner = standby;
        }
        Ok(times)
    }

    fn side_by_side(
        &self,
        samples: usize,
        duration: Duration,
        etcd_prefix: Option<&str>,
        end: End,
    ) -> Result<Vec<Duration>> {
        let each = samples.div_ceil(LANES);
        std::thread::scope(|scope| {
            let lanes: Vec<_> = (0..LANES)
                .map(|lane| {
                    let prefix = etcd_prefix.map(|prefix| format!("{prefix}-{lane}"));
                    scope.spawn(move || self.succession(each, duration, prefix.as_deref(), end))
                })
                .collect();
            let mut times = vec![];
            for lane in lanes {
                times.extend(lane.join().expect("a lane does not panic")?);
            }
            Ok(times)
        })
    }

    fn many(&self, figures: &mut Vec<Figure>) -> Result<()> {
        let database = self.fresh_database()?;
        let start = |number: usize| {
            Member::start(&Candidate {
                name: format!("member-{number}"),
                database: database.clone(),
                etcd: None,
                duration: LONG,
                scopes: MANY,
            })
        };
        let mut members = vec![start(0)?];
        let begun = Instant::now();
        balanced(&mut members)?;
        let took = begun.elapsed().as_secs_f64();
        figures.push(Figure::one("1,000 scopes acquired by one process", "s", took));
        figures.push(Figure::one("the same: acquired in a second", "/s", MANY as f64 / took));
        std::thread::sleep(Duration::from_secs(2));
        let (before, watched) = (cpu_of(members[0].child.id())?, LONG * 2);
        std::thread::sleep(watched);
        let share = (cpu_of(members[0].child.id())? - before).as_secs_f64() / watched.as_secs_f64() * 100.0;
        figures.push(Figure::of(
            "1,000 scopes at 15 s, Postgres: renewal",
            "% of a core",
            vec![share],
            Some(5.0),
        ));
        let memory = memory_of(members[0].child.id())?;
        figures.push(Figure::one("1,000 scopes at 15 s, Postgres: memory", "MB", memory));

        let goal = Some(LONG.as_secs_f64() * 2.0);
        let begun = Instant::now();
        members.extend([start(1)?, start(2)?]);
        balanced(&mut members)?;
        let joined = begun.elapsed().as_secs_f64();
        figures.push(Figure::of(
            "two members join the one with 1,000 scopes: even split",
            "s",
            vec![joined],
            goal,
        ));
        let begun = Instant::now();
        members.remove(0).signal(Signal::KILL)?;
        balanced(&mut members)?;
        let shrunk = begun.elapsed().as_secs_f64();
        figures.push(Figure::of("one of three is killed: even split", "s", vec![shrunk], goal));
        Ok(())
    }

    /// A database with one dag to write to.
    fn fresh_database(&self) -> Result<String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let entropy = Entropy::from_os();
            let name = format!("bench_{:x}", u64::from_be_bytes(entropy.bytes()));
            let (client, connection) = tokio_postgres::connect(&self.server, tokio_postgres::NoTls).await?;
            tokio::spawn(connection);
            client.batch_execute(&format!("CREATE DATABASE {name} TEMPLATE template0")).await?;
            let (base, _) = self.server.rsplit_once('/').context("a database URL has a path")?;
            let url = format!("{base}/{name}");
            let store = PostgresStore::connect(&url, PostgresOptions::default(), &entropy).await?;
            let task = TaskSpec::new("t", TaskKind::Exec { argv: vec!["true".into()] });
            let at = jiff::Timestamp::now();
            let registration = DagRegistration {
                trigger: Trigger { tenant: TenantId::default_tenant(), actor: "bench".into(), at },
                spec: DagSpec::new(member::DAG, vec![task]),
                source: String::new(),
                origin: "bench".into(),
                paused_if_new: true,
            };
            store.register_dag(&registration).await?;
            Ok(url)
        })
    }
}

/// Until every member holds its share.
fn balanced(members: &mut [Member]) -> Result<()> {
    let (least, most) = (MANY / members.len(), MANY.div_ceil(members.len()));
    let deadline = Instant::now() + PATIENCE;
    loop {
        members.iter_mut().for_each(Member::catch_up);
        let even = |member: &Member| (least..=most).contains(&member.holds);
        if members.iter().all(even) && members.iter().map(|member| member.holds).sum::<usize>() == MANY {
            return Ok(());
        }
        let counts: Vec<usize> = members.iter().map(|member| member.holds).collect();
        ensure!(Instant::now() < deadline, "the shares are not even in time: {counts:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A candidate's process, seen from outside.
struct Member {
    child: Child,
    told: mpsc::Receiver<Told>,
    holds: usize,
}

impl Member {
    fn start(candidate: &Candidate) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("--as-candidate")
            .arg(serde_json::to_string(candidate)?)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("a candidate cannot be started")?;
        let output = BufReader::new(child.stdout.take().context("its output is a pipe")?);
        let (sender, told) = mpsc::channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let Ok(told) = serde_json::from_str(&line) else { continue };
                if sender.send(told).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, told, holds: 0 })
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.child.id() as i32).context("a process has an id")?;
        Ok(kill_process(pid, signal)?)
    }

    fn follows(&mut self) -> Result<()> {
        match self.told.recv_timeout(PATIENCE)? {
            Told::Follows => Ok(()),
            other => bail!("expected a follower, and it said {other:?}"),
        }
    }

    fn wrote(&mut self) -> Result<Duration> {
        loop {
            if let Told::Wrote { at, .. } = self.told.recv_timeout(PATIENCE)? {
                return Ok(at);
            }
        }
    }

    fn catch_up(&mut self) {
        for told in self.told.try_iter() {
            if let Told::Holds { count, .. } = told {
                self.holds = count;
            }
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended by itself
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a tail that misses its goal is told, whatever the median is.

    use super::*;

    #[test]
    fn what_is_beyond_the_lease_is_held_to_its_goal_by_its_tail() {
        let after = |millis: &[u64]| millis.iter().map(|ms| SHORT + Duration::from_millis(*ms)).collect();
        let kept = |samples: Vec<Duration>| beyond("freeze", &samples, SHORT, 300.0).is_kept();
        assert!(kept(after(&[10, 20, 299])));
        assert!(!kept(after(&[10, 20, 301])));
    }
}
