//! When to stop.

use anyhow::Result;
use tokio::signal::unix::{SignalKind, signal};

/// Resolves with the name of the first signal that asks the process to end; the second one ends it at once.
pub fn stop_signal() -> Result<impl Future<Output = &'static str>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        let name = tokio::select! {
            _ = interrupt.recv() => "SIGINT",
            _ = terminate.recv() => "SIGTERM",
        };
        tokio::spawn(async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            eprintln!("stopped at once; nothing that was acknowledged is lost");
            std::process::exit(130);
        });
        name
    })
}
