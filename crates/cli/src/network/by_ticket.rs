//! What a ticket says of a name, beside what is known of it. Nobody signs a ticket: whoever hands it out may
//! have written any name into it.

use std::time::Duration;

use anyhow::Result;
use whimbrel_base::{Name, Ticket};
use whimbrel_names::{Origin, Standing};

use super::{Network, now};
use crate::output;

/// How long the name service may take to say whose a name is. Tickets are for when there is none.
const ASK_LIMIT: Duration = Duration::from_secs(3);

/// The domain of names that are nobody's (RFC 6761 §6.4).
const NOBODYS: &str = "invalid";

/// A name that no other listener has and no name service knows: it says which listener of an endpoint a
/// ticket means, and nothing else. `None` if the system gives no random numbers.
pub(crate) fn name_of_nobody() -> Option<Name> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).ok()?;
    format!("{:016x}@{NOBODYS}", u64::from_be_bytes(random)).parse().ok()
}

/// Lets a ticket be used if what it says of its name contradicts nothing.
///
/// # Errors
/// [`TrustError`](whimbrel_names::TrustError) when the name is known to be another key's.
pub(super) async fn judge(network: &Network, ticket: &Ticket) -> Result<()> {
    let Some(name) = ticket.name() else { return Ok(()) };
    if name.domain() == NOBODYS {
        // There is nothing to remember of it.
        return Ok(());
    }
    let confirm = || network.known.confirm(name, ticket.id(), Origin::Ticket, now());
    if confirm()? != Standing::Unproved {
        return Ok(());
    }
    // Its owner is known. What the owner has signed for the name is remembered, and counts.
    ask(network, name).await;
    if confirm()? == Standing::Unproved {
        let (user, id) = (name.user(), ticket.id());
        output::note(
            network.quiet,
            format!(
                "only the ticket says that {id} is {name}: nothing here shows that the owner of {user} gave it \
                 that name, and nothing of it is remembered"
            ),
        );
    }
    Ok(())
}

/// Learns the name's record, if there is one that this machine may see.
async fn ask(network: &Network, name: &Name) {
    let Some(names) = network.endpoint.names() else { return };
    match tokio::time::timeout(ASK_LIMIT, names.lookup_record(name)).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::debug!(%name, %error, "the name of a ticket is not found"),
        Err(_) => tracing::debug!(%name, "the name service does not answer"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_of_nobody_are_of_the_domain_that_nobody_has_and_differ() {
        let [one, other] = [0, 1].map(|_| name_of_nobody().unwrap());
        assert_ne!(one, other);
        assert_eq!((one.domain(), other.domain()), (NOBODYS, NOBODYS));
    }
}
