//! What tenants may take of the nodes.

use clap::Subcommand;
use serde_json::{Map, Value, json};
use tenure_model::{Resources, TenantId};

use super::client::Path;
use super::failure::Failure;
use super::screen::{cell, text};
use super::{Context, tell};
use crate::node_args::amount;

#[derive(Debug, Subcommand)]
pub enum QuotaCommand {
    /// List the quotas and what is used of them
    List,
    /// Set what a tenant's tasks may take of all nodes together
    #[command(
        after_help = "Example:\n  tenure quota set gpu=2,memory=64Gi,tasks=50\n\nWhat is not named is not limited; \"tasks\" counts tasks. What runs already goes on."
    )]
    Set {
        /// How much, like gpu=2,memory=64Gi,tasks=50
        #[arg(required = true, value_delimiter = ',', value_parser = amount)]
        amounts: Vec<(String, u64)>,
        /// Whose
        #[arg(long, value_name = "NAME", default_value = TenantId::DEFAULT)]
        tenant: String,
    },
    /// Delete a quota: nothing limits the tenant any more
    Delete {
        /// Whose
        #[arg(long, value_name = "NAME", default_value = TenantId::DEFAULT)]
        tenant: String,
    },
}

pub fn run(command: QuotaCommand, context: &Context) -> Result<(), Failure> {
    let client = context.client()?;
    let path = Path::new("/api/tenure/quotas");
    match command {
        QuotaCommand::List => {
            let quotas = client.items(&path, "quotas")?;
            let header = ["TENANT", "IN USE"];
            context.screen.list(&quotas, "no quotas", &header, |quota| {
                vec![cell(text(quota, "tenant")), cell(Some(in_use(quota)))]
            })
        }
        QuotaCommand::Set { amounts, tenant } => {
            let most: Map<String, Value> =
                amounts.into_iter().map(|(name, amount)| (name, json!(amount))).collect();
            let quota = client.put(&path.then(&tenant), &json!({ "most": most }))?;
            tell(context, &quota, &format!("the quota of tenant {tenant} is set; in use: {}", in_use(&quota)))
        }
        QuotaCommand::Delete { tenant } => {
            client.delete(&path.then(&tenant))?;
            let told = json!({ "tenant": tenant, "deleted": true });
            tell(context, &told, &format!("the quota of tenant {tenant} is deleted"))
        }
    }
}

/// `gpu 1 of 2, memory 0.5 GiB of 64.0 GiB`.
fn in_use(quota: &Value) -> String {
    let amount = |value: &Value| value.as_u64().unwrap_or(0);
    let shown = quota["most"].as_object().into_iter().flatten().map(|(name, most)| {
        let used = Resources::shown(name, amount(&quota["used"][name]));
        format!("{name} {used} of {}", Resources::shown(name, amount(most)))
    });
    shown.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_shown_with_what_is_used_of_it() {
        let gibi = 1_000 * (1u64 << 30);
        let quota =
            json!({ "most": { "gpu": 2000, "memory": 64 * gibi }, "used": { "memory": gibi / 2, "cpu": 1 } });
        assert_eq!(in_use(&quota), "gpu 0 of 2, memory 0.5 GiB of 64.0 GiB");
    }
}
