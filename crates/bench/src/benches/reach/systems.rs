//! The systems of which there is a stage.

use anyhow::{Context, Result};

#[cfg(feature = "peers")]
use super::iroh_stage;
use super::stage::Stage;
use super::whimbrel_stage;
use crate::lab::Homes;

/// A system whose relayed connections become direct.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum System {
    Whimbrel,
    /// With its own relay, which serves address discovery over QUIC as well.
    Iroh,
}

impl System {
    /// What was compiled in.
    pub(super) fn all() -> &'static [Self] {
        if cfg!(feature = "peers") { &[Self::Whimbrel, Self::Iroh] } else { &[Self::Whimbrel] }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Whimbrel => "whimbrel",
            Self::Iroh => "iroh",
        }
    }

    /// Starts a relay at port 443, and a server behind it. Whimbrel's relay is on the first relay's host,
    /// iroh's on the last one's.
    pub(super) fn stage(self, homes: &Homes) -> Result<Box<dyn Stage>> {
        match self {
            Self::Whimbrel => Ok(Box::new(whimbrel_stage::Whimbrel::start(homes)?)),
            #[cfg(feature = "peers")]
            Self::Iroh => Ok(Box::new(iroh_stage::Iroh::start(homes)?)),
            #[cfg(not(feature = "peers"))]
            Self::Iroh => anyhow::bail!("iroh is not compiled in"),
        }
    }
}

/// Starts all systems that were compiled in.
pub(super) fn all(homes: &Homes) -> Result<Vec<(System, Box<dyn Stage>)>> {
    let start = |system: &System| {
        let stage = system.stage(homes).with_context(|| format!("{} cannot start", system.name()))?;
        anyhow::Ok((*system, stage))
    };
    System::all().iter().map(start).collect()
}
