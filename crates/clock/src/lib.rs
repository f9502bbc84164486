//! The only door through which real time and real randomness enter.
//!
//! Core crates take a [`Clock`] and an [`Entropy`]; production passes [`SystemClock`] and
//! [`Entropy::from_os`], tests and the simulator pass virtual ones. Sleeping is left to tokio's timer, which
//! can be paused.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use uuid::Uuid;

/// Reads the time. Cheap to call, never blocks.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// Wall-clock time: for records that people read and for timetables, never for validity.
    fn now(&self) -> Timestamp;
    /// Time since boot, suspend included (CLOCK_BOOTTIME): for deadlines and validity.
    fn boottime(&self) -> BootTime;
    /// How long the machine has been suspended since boot: time that no timer has noticed.
    fn suspended(&self) -> Duration;
}

/// A point on one machine's boot-time clock. Two machines' values say nothing about each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootTime(Duration);

impl BootTime {
    pub fn since_boot(elapsed: Duration) -> Self {
        Self(elapsed)
    }

    pub fn saturating_since(self, earlier: BootTime) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    pub fn checked_sub(self, duration: Duration) -> Option<BootTime> {
        self.0.checked_sub(duration).map(Self)
    }
}

impl std::ops::Add<Duration> for BootTime {
    type Output = BootTime;
    fn add(self, duration: Duration) -> BootTime {
        BootTime(self.0.saturating_add(duration))
    }
}

/// The machine's clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods, reason = "this is the door")]
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn boottime(&self) -> BootTime {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        BootTime(duration(time))
    }

    fn suspended(&self) -> Duration {
        // Read in this order the difference is never too large by a pause between the two readings.
        let boot = duration(rustix::time::clock_gettime(rustix::time::ClockId::Boottime));
        let monotonic = duration(rustix::time::clock_gettime(rustix::time::ClockId::Monotonic));
        boot.saturating_sub(monotonic)
    }
}

fn duration(time: rustix::time::Timespec) -> Duration {
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A clock that stands still until it is told to move.
#[derive(Clone, Debug)]
pub struct ManualClock {
    start: Timestamp,
    elapsed: Arc<Mutex<Duration>>,
    suspended: Arc<Mutex<Duration>>,
}

impl ManualClock {
    pub fn starting_at(start: Timestamp) -> Self {
        Self { start, elapsed: Arc::default(), suspended: Arc::default() }
    }

    /// As if the machine had slept.
    pub fn suspend(&self, by: Duration) {
        *self.suspended.lock().expect("no panic while holding the clock") += by;
        self.advance(by);
    }

    pub fn advance(&self, by: Duration) {
        *self.elapsed.lock().expect("no panic while holding the clock") += by;
    }

    fn elapsed(&self) -> Duration {
        *self.elapsed.lock().expect("no panic while holding the clock")
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        self.start + self.elapsed()
    }

    fn boottime(&self) -> BootTime {
        BootTime(self.elapsed())
    }

    fn suspended(&self) -> Duration {
        *self.suspended.lock().expect("no panic while holding the clock")
    }
}

/// A seeded source of randomness, shared by whoever needs ids or jitter.
#[derive(Clone, Debug)]
pub struct Entropy(Arc<Mutex<StdRng>>);

impl Entropy {
    pub fn seeded(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(StdRng::seed_from_u64(seed))))
    }

    pub fn from_os() -> Self {
        let generator = StdRng::try_from_rng(&mut rand::rngs::SysRng).expect("the kernel gives random bytes");
        Self(Arc::new(Mutex::new(generator)))
    }

    /// A version-7 UUID: its order is the order of `at`, so new rows land side by side in an index.
    pub fn uuid(&self, at: Timestamp) -> Uuid {
        let mut bytes = [0u8; 10];
        self.0.lock().expect("no panic while drawing").fill_bytes(&mut bytes);
        let millis = at.as_millisecond().max(0) as u64;
        uuid::Builder::from_unix_timestamp_millis(millis, &bytes).into_uuid()
    }

    pub fn bytes<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0u8; N];
        self.0.lock().expect("no panic while drawing").fill_bytes(&mut bytes);
        bytes
    }

    /// Between zero and `most`.
    pub fn jitter(&self, most: Duration) -> Duration {
        let draw = u64::from_be_bytes(self.bytes());
        most.mul_f64(draw as f64 / u64::MAX as f64)
    }
}
