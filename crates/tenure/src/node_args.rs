//! What somebody says about a node on the command line: of an agent, and of `tenure up`, which has one inside.

use clap::Args;
use tenure_model::{QueueName, Resources, Taint};
use tenure_store::NodeRegistration;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "This node")]
pub struct NodeArgs {
    /// Something that tasks can ask for in a node; may be given several times
    #[arg(long = "label", env = "TENURE_AGENT_LABELS", value_name = "KEY=VALUE", value_delimiter = ',', value_parser = label)]
    pub labels: Vec<(String, String)>,
    /// Keeps tasks away that do not tolerate it; may be given several times
    #[arg(long = "taint", env = "TENURE_AGENT_TAINTS", value_name = "KEY[=VALUE]", value_delimiter = ',')]
    pub taints: Vec<Taint>,
    /// A queue whose tasks this node takes; may be given several times
    #[arg(long = "queue", env = "TENURE_AGENT_QUEUES", value_name = "NAME", value_delimiter = ',', default_value = QueueName::DEFAULT, value_parser = queue)]
    pub queues: Vec<QueueName>,
    /// What this node has, like cpu=4,memory=8Gi,tasks=64,gpu=2 [default: what the machine has]
    #[arg(long, env = "TENURE_AGENT_CAPACITY", value_name = "AMOUNTS", value_delimiter = ',', value_parser = amount)]
    pub capacity: Vec<(String, u64)>,
}

impl NodeArgs {
    /// What is said goes before what the machine shows.
    pub fn over(self, machine: NodeRegistration) -> NodeRegistration {
        let said = self.capacity.into_iter();
        let capacity = said.fold(machine.capacity, |capacity, (name, amount)| capacity.with(&name, amount));
        NodeRegistration {
            capacity,
            labels: self.labels.into_iter().collect(),
            taints: self.taints.into_iter().collect(),
            queues: self.queues.into_iter().collect(),
            ..machine
        }
    }
}

pub fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write it like zone=b".into()),
    }
}

pub fn queue(text: &str) -> Result<QueueName, String> {
    match text.is_empty() || text.contains(char::is_whitespace) {
        false => Ok(QueueName::new(text)),
        true => Err("write the name of a queue, without spaces".into()),
    }
}

/// In thousandths. The same units as in dag files.
pub fn amount(text: &str) -> Result<(String, u64), String> {
    let (name, text) =
        text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or("write it like cpu=4")?;
    let units = Resources::units(name);
    let unit = units.iter().find_map(|(unit, size)| Some((text.strip_suffix(unit)?, *size)));
    let (digits, size) = unit.unwrap_or((text, 1.0));
    let thousandths = digits.trim().parse::<f64>().ok().map(|number| number * size * 1_000.0);
    match thousandths {
        Some(thousandths) if (0.0..1e18).contains(&thousandths) => {
            Ok((name.to_owned(), thousandths.round() as u64))
        }
        _ => {
            let units: Vec<&str> = units.iter().map(|(unit, _)| *unit).collect();
            let units = match units.as_slice() {
                [] => String::new(),
                units => format!(", with {} behind it if you like", units.join(", ")),
            };
            Err(format!("{text:?} is no amount of {name}: write a number{units}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        node: NodeArgs,
    }

    fn said(words: &[&str]) -> Result<NodeRegistration, String> {
        let line = Line::try_parse_from(["node"].iter().chain(words)).map_err(|error| error.to_string())?;
        let machine = Resources::default().with("cpu", 2_000).with("memory", 5);
        Ok(line.node.over(NodeRegistration::new("n".into(), machine, "1")))
    }

    #[test]
    fn amounts_are_read_in_the_units_of_dag_files() {
        for (text, thousandths) in [
            ("cpu=4", 4_000),
            ("cpu=500m", 500),
            ("cpu=0.5", 500),
            ("memory=8Gi", 8 * 1024 * 1024 * 1024 * 1_000),
            ("memory=2G", 2_000_000_000_000),
            ("tasks=64", 64_000),
            ("gpu=2", 2_000),
        ] {
            let (name, _) = text.split_once('=').unwrap();
            assert_eq!(amount(text), Ok((name.to_owned(), thousandths)), "{text}");
        }
        for (text, word) in
            [("cpu", "cpu=4"), ("=4", "cpu=4"), ("cpu=four", "cpu"), ("gpu=1Gi", "gpu"), ("memory=-1", "Gi")]
        {
            let error = amount(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_said_goes_before_what_the_machine_shows() {
        let plain = said(&[]).unwrap();
        assert_eq!(plain, NodeRegistration::new("n".into(), plain.capacity.clone(), "1"));
        let words = [
            "--capacity",
            "cpu=1,gpu=3",
            "--label",
            "zone=b",
            "--taint",
            "gpu=a100,old",
            "--queue",
            "big,default",
        ];
        let node = said(&words).unwrap();
        let amounts = ["cpu", "memory", "gpu"].map(|name| node.capacity.get(name));
        assert_eq!((amounts, node.labels["zone"].as_str()), ([1_000, 5, 3_000], "b"));
        assert_eq!(node.taints, ["gpu=a100".parse().unwrap(), "old".parse().unwrap()].into());
        assert_eq!(node.queues, ["big".into(), "default".into()].into());
        assert_eq!(
            said(&["--queue", "big"]).unwrap().queues,
            ["big".into()].into(),
            "instead of the default"
        );
        for (word, value) in [("--taint", "g pu"), ("--queue", "a b"), ("--label", "zone")] {
            let error = said(&[word, value]).unwrap_err();
            assert!(error.contains(word) && error.contains(value), "{error}");
        }
    }
}
