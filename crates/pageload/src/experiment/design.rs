//! What is simulated: `design.toml`.

use crate::modern::{Network, Settings, Trace, TraceError};
use crate::scenario::Link;
use crate::simulator::Model;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use whimbrel_access::{MAX_PATHS, PolicyError, PolicySpec};

/// A full factorial design.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Design {
    /// The model.
    pub model: Model,
    /// Where the pages are, relative to the design's file.
    pub pages: PathBuf,
    /// Which of them are loaded.
    #[serde(default, skip_serializing_if = "Purpose::is_everything")]
    pub purpose: Purpose,
    /// Decides about everything that is random.
    #[serde(default)]
    pub seed: u64,
    /// The levels of each path, the first path first.
    #[serde(rename = "path")]
    pub paths: Vec<Levels>,
    /// The policies.
    #[serde(rename = "policy")]
    pub policies: Vec<LabelledPolicy>,
    /// The switches of the modern model.
    #[serde(default)]
    pub modern: Settings,
}

/// What an experiment is for decides which pages it loads: a policy must not be judged by the pages that its
/// settings were chosen on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    /// All pages.
    #[default]
    Everything,
    /// To choose settings: every eighth page in the order of their names, from the first on.
    Tuning,
    /// To judge what was chosen: all other pages.
    Judging,
}

impl Purpose {
    /// Of so many pages in order, one is for tuning.
    const TUNING: usize = 8;

    /// Whether the page at this position, from 0 on, is loaded.
    pub fn takes(self, page: usize) -> bool {
        let is_for_tuning = page.is_multiple_of(Self::TUNING);
        match self {
            Self::Everything => true,
            Self::Tuning => is_for_tuning,
            Self::Judging => !is_for_tuning,
        }
    }

    fn is_everything(&self) -> bool {
        *self == Self::Everything
    }
}

/// The levels of one path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Levels {
    /// Round-trip times in milliseconds.
    pub rtt_ms: Vec<f64>,
    /// Rates in Mbit/s of 2^20 bits. Left out if there is a trace.
    #[serde(default)]
    pub mbit: Vec<f64>,
    /// The share of segments that is lost (modern model).
    #[serde(default)]
    pub loss: f64,
    /// A trace that the rate follows (modern model), relative to the design's file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<PathBuf>,
}

/// A policy and what it is called in results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LabelledPolicy {
    /// Its name in results; unique.
    pub label: String,
    /// The policy.
    #[serde(flatten)]
    pub spec: PolicySpec,
}

/// One combination of path settings.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Round-trip time (ms) and rate (Mbit/s) of each path.
    pub levels: Vec<(f64, f64)>,
    /// The same for the simulator.
    pub networks: Vec<Network>,
}

/// Why a design can't be run.
#[derive(Debug, thiserror::Error)]
pub enum DesignError {
    /// It can't be read.
    #[error("{file}: {error}")]
    Read {
        /// The file.
        file: String,
        /// Why.
        error: std::io::Error,
    },
    /// It is not a design.
    #[error("{file}: {error}")]
    Toml {
        /// The file.
        file: String,
        /// What is wrong, and where.
        error: Box<toml::de::Error>,
    },
    /// A policy is wrong.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A trace is wrong.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The design makes no sense.
    #[error("design: {0}")]
    Sense(String),
}

impl Design {
    /// Read a design; paths in it become relative to the working directory.
    ///
    /// # Errors
    /// [`DesignError`] if it can't be read or makes no sense.
    pub fn read(path: &Path) -> Result<Self, DesignError> {
        let file = path.display().to_string();
        let text =
            std::fs::read_to_string(path).map_err(|error| DesignError::Read { file: file.clone(), error })?;
        let mut design: Self =
            toml::from_str(&text).map_err(|error| DesignError::Toml { file, error: Box::new(error) })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        design.pages = folder.join(&design.pages);
        for trace in design.paths.iter_mut().filter_map(|levels| levels.trace.as_mut()) {
            *trace = folder.join(&trace);
        }
        design.check()?;
        Ok(design)
    }

    fn check(&self) -> Result<(), DesignError> {
        let sense = |holds: bool, text: &str| {
            if holds { Ok(()) } else { Err(DesignError::Sense(text.to_owned())) }
        };
        sense((1..=MAX_PATHS).contains(&self.paths.len()), "from 1 to 8 [[path]] tables are needed")?;
        sense(!self.policies.is_empty(), "at least one [[policy]] is needed")?;
        for levels in &self.paths {
            let positive = |list: &[f64]| !list.is_empty() && list.iter().all(|x| *x > 0.0 && x.is_finite());
            sense(positive(&levels.rtt_ms), "rtt-ms needs numbers above 0")?;
            sense(levels.trace.is_some() || positive(&levels.mbit), "mbit needs numbers above 0")?;
            sense((0.0..1.0).contains(&levels.loss), "loss must be from 0 to below 1")?;
            let extra = levels.trace.is_some() || levels.loss > 0.0;
            sense(!(extra && self.model == Model::Paper), "the paper's model knows neither loss nor traces")?;
        }
        for (n, policy) in self.policies.iter().enumerate() {
            policy.spec.build()?;
            let plain = policy.label.chars().all(|c| !c.is_control() && c != ',' && c != '"');
            sense(plain && !policy.label.is_empty(), "a label may not be empty or contain , or \"")?;
            let twice = self.policies[..n].iter().any(|other| other.label == policy.label);
            sense(!twice, &format!("the label {} is there twice", policy.label))?;
            let path = policy.spec.path().unwrap_or(1);
            sense(usize::from(path) <= self.paths.len(), "a policy starts on a path that is not there")?;
        }
        Ok(())
    }

    /// All combinations of path settings; the last path varies fastest.
    ///
    /// # Errors
    /// [`DesignError::Trace`] if a trace can't be read.
    pub fn settings(&self) -> Result<Vec<Setting>, DesignError> {
        let mut settings = vec![Setting { levels: Vec::new(), networks: Vec::new() }];
        for levels in &self.paths {
            let options = options(levels)?;
            settings = settings
                .iter()
                .flat_map(|before| {
                    options.iter().map(|(level, network)| {
                        let mut setting = before.clone();
                        setting.levels.push(*level);
                        setting.networks.push(network.clone());
                        setting
                    })
                })
                .collect();
        }
        Ok(settings)
    }
}

/// What results call a level of one path, and the level itself.
type Level = ((f64, f64), Network);

fn options(levels: &Levels) -> Result<Vec<Level>, DesignError> {
    let trace = levels.trace.as_deref().map(Trace::read).transpose()?.map(Arc::new);
    let mut options = Vec::new();
    for &rtt in &levels.rtt_ms {
        if let Some(trace) = &trace {
            let network = Network { loss: levels.loss, ..Network::traced(rtt * 0.001, trace.clone()) };
            options.push(((rtt, network.link.rate * 8.0 / 1024.0 / 1024.0), network));
            continue;
        }
        for &mbit in &levels.mbit {
            let link = Link::paper(rtt, mbit);
            options.push(((rtt, mbit), Network { loss: levels.loss, ..Network::plain(link) }));
        }
    }
    Ok(options)
}
