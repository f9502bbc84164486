//! What administrators show: the digest of a token, chosen once.

use deadpool_postgres::Pool;
use tenure_store::StoreError;

use crate::rows;
use crate::session::Session;

const DOING: &str = "reading the administrators' token";
/// Whoever comes second waits for the first, and keeps what that one chose.
const OFFER: &str = "INSERT INTO meta (name, value) VALUES ('admin_token', $1) ON CONFLICT DO NOTHING";
const KEPT: &str = "SELECT value FROM meta WHERE name = 'admin_token'";

pub(super) async fn admin_token(pool: &Pool, offered: Option<&str>) -> Result<Option<String>, StoreError> {
    if let Some(offered) = offered {
        let session = Session::begin(pool, DOING).await?;
        let outcome = session.execute(OFFER, &[&offered]).await;
        session.finish(outcome).await?;
    }
    let kept = Session::once(pool, DOING, KEPT, &[]).await?;
    Ok(rows::all(&kept, |cells| cells.take())?.pop())
}
