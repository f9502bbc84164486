//! The token that opens the API and lets agents in. The database knows its digest; there is no default.

use anyhow::{Context, Result, bail};
use tenure_api::TokenDigest;
use tenure_store::SharedStore;

/// Names the first token of a new database.
const VARIABLE: &str = "TENURE_BOOTSTRAP_TOKEN";
/// Below this a token can be guessed.
const SHORT: usize = 16;

/// The digest that counts: the database's, or for a new database that of the token in the environment.
pub(super) async fn settle(store: &SharedStore) -> Result<TokenDigest> {
    let given = std::env::var(VARIABLE).ok().filter(|token| !token.trim().is_empty());
    let offered = given.as_deref().map(|token| TokenDigest::of(token.trim()));
    let hex = offered.map(TokenDigest::to_hex);
    let known = store.admin_token(hex.as_deref()).await.context("the database's token cannot be read")?;
    let Some(known) = known else {
        bail!(
            "this database has no administrators' token yet, and none is built in: choose one with \
             \"openssl rand -hex 32\", keep it, and start again with {VARIABLE} set to it (only the first start of a new \
             database needs it)"
        );
    };
    let token =
        TokenDigest::from_hex(&known).context("the digest of the token in the database makes no sense")?;
    match offered {
        Some(offered) if offered != token => {
            tracing::info!("{VARIABLE} is not this database's token, which was set before: it is ignored");
        }
        Some(_) if given.is_some_and(|token| token.trim().len() < SHORT) => {
            tracing::warn!("{VARIABLE} is shorter than {SHORT} characters, and easy to guess");
        }
        _ => {}
    }
    Ok(token)
}
