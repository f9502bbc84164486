//! Work that goes on for as long as its process: a panic in it is a defect, but not its end.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use tenure_clock::Clock;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
/// Work that has lasted for longer than this pause has recovered: the next panic is a new one.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Does the work, and begins it anew whenever it panics, after a pause that doubles. Returns when the work does, or is
/// to stop during a pause.
pub(crate) async fn tirelessly<W: Future<Output = ()> + Send + 'static>(
    what: &'static str,
    clock: &dyn Clock,
    panics: &Counter,
    stop: &CancellationToken,
    work: impl Fn() -> W,
) {
    let mut pause = SHORTEST_PAUSE;
    loop {
        let begun = clock.boottime();
        let Err(end) = AbortOnDropHandle::new(tokio::spawn(work())).await else { return };
        if !end.is_panic() {
            return; // the runtime ends
        }
        panics.inc();
        tracing::error!(what, panic = %end, ?pause, "it panicked; it starts over");
        if clock.boottime().saturating_since(begun) > LONGEST_PAUSE {
            pause = SHORTEST_PAUSE;
        }
        if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
            return;
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
