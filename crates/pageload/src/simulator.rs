//! Both models behind one door.

use crate::modern::{self, Network, Settings};
use crate::page::{Page, Reading};
use crate::paper;
use crate::scenario::{Link, Outcome};
use serde::{Deserialize, Serialize};
use whimbrel_access::Policy;

/// Which model simulates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Model {
    /// Exactly that of Socket Intents.
    Paper,
    /// As browsers and servers work today.
    Modern,
}

impl Model {
    /// How this model reads HAR files.
    pub fn reading(self) -> Reading {
        match self {
            Self::Paper => Reading::Paper,
            Self::Modern => Reading::Modern,
        }
    }
}

/// How pages are loaded. The paper's model takes of the networks only their links, and none of the settings.
#[derive(Debug, Clone, Copy)]
pub struct Conditions<'a> {
    /// The model.
    pub model: Model,
    /// The paths.
    pub networks: &'a [Network],
    /// The switches of the modern model.
    pub settings: &'a Settings,
    /// Decides about losses, and about what a policy draws by lot.
    pub seed: u64,
}

/// A simulator of each model. Keeps its memory from load to load.
#[derive(Default)]
pub struct Simulator {
    paper: paper::Simulator,
    modern: modern::Simulator,
    links: Vec<Link>,
}

impl Simulator {
    /// A simulator.
    pub fn new() -> Self {
        Self::default()
    }

    /// Load a page by this policy, which is reset before. The outcome is written into `outcome`, whose memory
    /// is reused.
    pub fn load(
        &mut self,
        page: &Page,
        conditions: Conditions<'_>,
        policy: &mut dyn Policy,
        outcome: &mut Outcome,
    ) {
        let Conditions { model, networks, settings, seed } = conditions;
        policy.reset(seed);
        match model {
            Model::Paper => {
                self.links.clear();
                self.links.extend(networks.iter().map(|network| network.link));
                self.paper.load(page, &self.links, policy, outcome);
            }
            Model::Modern => self.modern.load(page, networks, settings, policy, seed, outcome),
        }
    }
}
