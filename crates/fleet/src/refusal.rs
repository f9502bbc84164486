//! What becomes of an assignment that its node did not take: the scheduler hears that it was not delivered.

use std::sync::Arc;
use std::time::Duration;

use tenure_agent_proto::{Refusal, Why};
use tenure_clock::Clock;
use tenure_model::{Ack, FailReason, NodeId, Report, ReportBody};

use crate::ReportSink;

/// It will be placed again, most likely right there: not as fast as it can be refused.
const PAUSE: Duration = Duration::from_millis(250);
/// Beyond that the owner's own deadline for claims is near.
const TRIES: u32 = 20;

pub(crate) async fn tell(refusal: Refusal, node: NodeId, sink: Arc<dyn ReportSink>, clock: Arc<dyn Clock>) {
    let Refusal { attempt, ti, scope, why } = refusal;
    let failure = match why {
        // Whoever bound it is deposed, and its successor knows of the attempt.
        Why::StaleEpoch { highest } => {
            tracing::warn!(%attempt, %node, scope, "assignment refused: e{highest} has been seen there");
            return;
        }
        Why::NotTaken { reason } => {
            tracing::warn!(%attempt, %node, reason, "assignment not taken");
            tokio::time::sleep(PAUSE).await;
            None
        }
        Why::Unreadable { reason } => Some(FailReason::CannotStart { error: reason }),
    };
    let body = ReportBody::Undelivered { attempt, ti, failure, at: clock.now() };
    let report = Report { node, scope, body };
    for _ in 0..TRIES {
        if sink.submit(report.clone()).await != Ack::Retry {
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }
    tracing::warn!(%attempt, "nobody takes the news that it was refused; its deadline will tell");
}
