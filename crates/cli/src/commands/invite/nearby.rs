//! Introductions in one network, without a name service: nobody but the two says there whose a name is.
//!
//! The code shows that the other side's key is that of the machine that was told it. What its user is called
//! is its own word, which counts as little as any first use: never against what is known here, and for no
//! access.

use std::time::SystemTime;

use anyhow::Result;
use whimbrel_base::{EndpointId, Name};
use whimbrel_names::{Origin, Standing, TrustError};

use crate::failure::Failure;
use crate::network::Network;
use crate::output;

/// Whether the local network is all that there is to ask.
pub(super) fn is_all(network: &Network) -> bool {
    network.lan.is_some() && !network.has_names()
}

/// Makes sure that a user name that is to be told to others is no other key's by what is known here.
///
/// # Errors
/// When it is.
pub(super) fn claim(network: &Network, user: &Name) -> Result<()> {
    match network.known.confirm(user, network.id(), Origin::Own, SystemTime::now().into()) {
        Ok(_) => Ok(()),
        Err(TrustError::OwnerChanged { known, .. }) => {
            let message = format!(
                "{user} is known here as {}, which is not this machine's key; run this where that key is, or, \
                 if that is not its owner's, `whimbrel trust forget {user}` first",
                known.key
            );
            Err(Failure::new(Failure::REFUSED, message).into())
        }
        Err(error) => Err(error.into()),
    }
}

/// Remembers what the other side says that its user is called.
///
/// # Errors
/// When that name is known here as another key's.
pub(super) fn check(network: &Network, other: EndpointId, user: &Name, quiet: bool) -> Result<()> {
    match network.known.confirm(user, other, Origin::FirstUse, SystemTime::now().into()) {
        Ok(Standing::New) => {
            let text = format!(
                "{user} is met for the first time, by nobody's word but its own in this network; \
                 `--allow {user}` wants its key confirmed: compare {other} with `whimbrel id` there"
            );
            output::note(quiet, text);
            Ok(())
        }
        Ok(_) => Ok(()),
        Err(TrustError::OwnerChanged { known, .. }) => {
            let message = format!(
                "the other side says that it is {user}, which is known here as {}, and its key is {other}. \
                 If its owner tells you that the key changed, run `whimbrel trust accept {user}={other}`",
                known.key
            );
            Err(Failure::new(Failure::UNTRUSTED, message).into())
        }
        Err(error) => Err(error.into()),
    }
}
