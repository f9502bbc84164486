//! What was said on the command line and in the environment, as it was written.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};

use super::knobs::{KNOBS, Knob};
use super::{Edition, Profile};

/// Where a value was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Default(Profile),
    File { path: PathBuf, line: usize },
    Variable(String),
    Flag(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default(profile) => write!(f, "default ({})", profile.name()),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Variable(name) => f.write_str(name),
            Self::Flag(name) => write!(f, "--{name}"),
        }
    }
}

/// Nothing is understood here yet: that needs the file and the defaults.
#[derive(Clone, Debug, Default)]
pub struct Given {
    values: BTreeMap<&'static str, (String, Source)>,
    config: Option<PathBuf>,
}

const CONFIG: &str = "config";

impl Given {
    pub fn config_file(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    pub fn get(&self, key: &str) -> Option<(String, Source)> {
        self.values.get(key).cloned()
    }

    #[cfg(test)]
    pub fn with(mut self, key: &str, value: &str) -> Self {
        let knob = Knob::find(key).expect("a setting that exists");
        self.values.insert(knob.key, (value.into(), Source::Flag(knob.flag())));
        self
    }

    #[cfg(test)]
    pub fn with_config(mut self, file: &Path) -> Self {
        self.config = Some(file.to_owned());
        self
    }

    fn from_matches(matches: &ArgMatches) -> Self {
        let said = |id: &str| {
            // A setting that the command does not take is not in the matches at all.
            let value = matches.try_get_one::<String>(id).ok().flatten()?;
            let by_variable = matches.value_source(id) == Some(ValueSource::EnvVariable);
            // An empty variable says nothing: that is how a file of variables leaves one out.
            (!value.is_empty() || !by_variable).then(|| (value.clone(), by_variable))
        };
        let one = |knob: &'static Knob| {
            let (value, by_variable) = said(knob.key)?;
            let source = match by_variable {
                true => Source::Variable(knob.variable()),
                false => Source::Flag(knob.flag()),
            };
            Some((knob.key, (value, source)))
        };
        Self {
            values: KNOBS.iter().filter_map(one).collect(),
            config: said(CONFIG).map(|(path, _)| path.into()),
        }
    }
}

/// The flags of one command.
fn arguments(command: Command, edition: Edition) -> Command {
    let config = Arg::new(CONFIG)
        .long(CONFIG)
        .env("TENURE_CONFIG")
        .value_name("FILE")
        .help("Settings in a TOML file; the environment and flags go before it");
    let knobs = KNOBS.iter().filter(|knob| edition == Edition::Server || !knob.server_only);
    command.arg(config).args(knobs.map(|knob| argument(knob, edition)))
}

fn argument(knob: &'static Knob, edition: Edition) -> Arg {
    let help = match knob.default_text(edition) {
        Some(default) => format!("{} [default: {default}]", knob.about),
        None => knob.about.to_owned(),
    };
    Arg::new(knob.key)
        .long(knob.flag())
        .env(knob.variable())
        .hide_env_values(true)
        .value_name(knob.value)
        .help_heading(knob.group.heading())
        .help(help)
}

macro_rules! settings_of {
    ($(#[$about:meta])* $name:ident, $edition:expr) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default)]
        pub struct $name(pub Given);

        impl Args for $name {
            fn augment_args(command: Command) -> Command {
                arguments(command, $edition)
            }

            fn augment_args_for_update(command: Command) -> Command {
                arguments(command, $edition)
            }
        }

        impl FromArgMatches for $name {
            fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
                Ok(Self(Given::from_matches(matches)))
            }

            fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
                self.0 = Given::from_matches(matches);
                Ok(())
            }
        }
    };
}

settings_of! {
    /// The settings of `tenure up`.
    UpSettings, Edition::Up
}
settings_of! {
    /// The settings of `tenure server`: all there are.
    ServerSettings, Edition::Server
}
