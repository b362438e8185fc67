//! The devices of users in the rules, as this machine's own list of devices and friends has them: nobody else
//! is asked.

use std::collections::HashMap;
use std::sync::PoisonError;
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures_util::FutureExt;
use whimbrel_base::{EndpointId, SecretKey};
use whimbrel_devices::{Label, Subject};

use super::{Access, Rule, Rules};
use crate::failure::Failure;
use crate::{aside, failure, own_group};

/// Between two looks at the list, which other commands change.
const LOOK: Duration = Duration::from_secs(5);

/// The devices of each user.
pub(super) type Devices = HashMap<EndpointId, Vec<EndpointId>>;

impl Rules {
    /// The users in the rules.
    fn users(&self) -> Vec<EndpointId> {
        let user = |rule: &Rule| match rule {
            Rule::User(user) | Rule::Device { user, .. } => Some(*user),
            _ => None,
        };
        self.all().filter_map(user).collect()
    }

    /// Whether a user of the rules has this device.
    pub(super) fn has(&self, user: &EndpointId, device: EndpointId) -> bool {
        self.devices.get(user).is_some_and(|devices| devices.contains(&device))
    }
}

impl Access {
    /// Knows the devices of the users in the rules from now on.
    pub(super) fn look_at_users(&self, rules: &mut Rules) {
        let users = rules.users();
        if users.is_empty() {
            rules.devices.clear();
            if let Some(looking) = rules.looking.take() {
                looking.abort();
            }
            return;
        }
        if let Some(devices) = of(&self.inner.key, &users) {
            rules.devices = devices;
        }
        if rules.looking.is_none() {
            let looking = tokio::spawn(FutureExt::boxed(follow(self.clone())));
            rules.looking = Some(looking.abort_handle());
        }
    }

    /// What the user calls a device is the user's own word, signed on one of the user's devices. A friend may
    /// have come by the name service: as with the friend's name, the key must have been confirmed here.
    pub(super) fn rule_of_label(&self, label: &Label) -> Result<Rule> {
        let unknown = || {
            Failure::usage(format!(
                "--allow {label} lets nobody in: it is neither `any` nor an id nor a name, which has an '@', and no \
                 device or friend of yours is called so"
            ))
        };
        let group = own_group::kept(&self.inner.key)?.ok_or_else(unknown)?;
        let subject = group.called(label).ok_or_else(unknown)?;
        // A device that may not act for the user calls itself what it likes, and friends choose their own
        // names.
        own_group::check_word(&group, label.as_str(), subject)
            .with_context(|| format!("--allow {label} lets nobody in"))?;
        match subject {
            Subject::Device(device) => Ok(Rule::Device { user: group.user(), device }),
            Subject::FriendDevice(user, device) => Ok(Rule::Device { user, device }),
            Subject::Friend(user) => {
                let name = group.friend(user).and_then(|friend| friend.name()).ok_or_else(unknown)?;
                match self.rule_of_name(name)? {
                    Rule::User(known) if known == user => Ok(Rule::User(user)),
                    _ => {
                        let message = format!("--allow {label} lets nobody in: {name} has another key here");
                        Err(Failure::new(Failure::UNTRUSTED, message).into())
                    }
                }
            }
        }
    }

    /// The users in the rules.
    fn users(&self) -> Vec<EndpointId> {
        self.inner.rules.read().unwrap_or_else(PoisonError::into_inner).users()
    }

    /// Those that are not among these devices any more are out. Nothing happens if the rules have other users
    /// by now, whose devices were looked at when these came.
    fn set_devices(&self, devices: Devices) {
        let mut rules = self.rules_to_change();
        let is_of_now = rules.users().iter().all(|user| devices.contains_key(user));
        if is_of_now && rules.devices != devices {
            rules.devices = devices;
            drop(rules);
            self.inner.changed.notify_one();
        }
    }
}

/// The devices of these users, as they are now; `None` if that cannot be read, which says nothing.
fn of(key: &SecretKey, users: &[EndpointId]) -> Option<Devices> {
    understood(own_group::devices_of(key, users))
}

/// Keeps them up to date for as long as users are in the rules.
async fn follow(access: Access) {
    loop {
        tokio::time::sleep(LOOK).await;
        let (key, users) = (access.inner.key.clone(), access.users());
        if users.is_empty() {
            continue;
        }
        let looked = aside::run(move || own_group::devices_of(&key, &users)).await;
        if let Some(devices) = understood(looked.context("the process is ending").and_then(|read| read)) {
            access.set_devices(devices);
        }
    }
}

fn understood(read: Result<Devices>) -> Option<Devices> {
    read.inspect_err(|error| {
        tracing::warn!(error = failure::line(error), "the devices of users in --allow are not known");
    })
    .ok()
}
