//! What the process says while it runs.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// `TENURE_LOG` takes tracing's filter syntax, like `debug` or `tenure_scheduler=trace`.
pub fn start_logging() {
    let filter = EnvFilter::try_from_env("TENURE_LOG").unwrap_or_else(|_| EnvFilter::new("warn,tenure=info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
}
