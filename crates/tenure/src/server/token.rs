//! The token that opens the API and lets agents in. The database knows its digest; there is no default.

use anyhow::{Context, Result, bail};
use tenure_api::TokenDigest;
use tenure_clock::Entropy;
use tenure_store::SharedStore;
use tenure_store_postgres::describe;

use crate::replica::{self, Porch};

/// Names the first token of a new database.
const VARIABLE: &str = "TENURE_BOOTSTRAP_TOKEN";
/// Below this a token can be guessed.
const SHORT: usize = 16;

/// Before anything is made of a new database: is there a token to open it with?
pub(super) async fn must_be_there(database_url: &str, entropy: &Entropy, porch: &Porch) -> Result<()> {
    if given().is_some() || replica::waiting(entropy, porch, || describe(database_url)).await?.has_token {
        return Ok(());
    }
    bail!(
        "this database is new and has no administrators' token, and none is built in: choose one with \"openssl \
         rand -hex 32\", keep it, and start again with {VARIABLE} set to it (only a new database needs that)"
    )
}

/// The digest that counts: the database's, or for a new database that of the token in the environment.
pub(super) async fn settle(store: &SharedStore) -> Result<TokenDigest> {
    let given = given();
    let offered = given.as_deref().map(TokenDigest::of);
    let hex = offered.map(TokenDigest::to_hex);
    let known = store.admin_token(hex.as_deref()).await.context("the database's token cannot be read")?;
    let known = known.context("the database has lost its token while this server started")?;
    let token =
        TokenDigest::from_hex(&known).context("the digest of the token in the database makes no sense")?;
    match offered {
        Some(offered) if offered != token => {
            tracing::info!("{VARIABLE} is not this database's token, which was set before: it is ignored");
        }
        Some(_) if given.is_some_and(|token| token.len() < SHORT) => {
            tracing::warn!("{VARIABLE} is shorter than {SHORT} characters, and easy to guess");
        }
        _ => {}
    }
    Ok(token)
}

/// What stands in the environment; blanks around it come from files, not from people.
fn given() -> Option<String> {
    std::env::var(VARIABLE).ok().map(|token| token.trim().to_owned()).filter(|token| !token.is_empty())
}
