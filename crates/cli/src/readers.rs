//! Who may look up what a command publishes.

use whimbrel::TooManyReaders;
use whimbrel_base::Name;
use whimbrel_names::{Reader, Readers};

use crate::who::Who;

/// Who may look `name` up if it is shown to these: they, and the devices of the name's own user. A name
/// stands for its user.
pub(crate) fn of(shown_to: impl IntoIterator<Item = Who>, name: &Name) -> Result<Readers, TooManyReaders> {
    let shown_to: Option<Vec<Reader>> = shown_to.into_iter().map(reader).collect();
    match shown_to {
        Some(readers) => whimbrel::readers_only(readers, name),
        None => Ok(Readers::Public),
    }
}

/// `None` for everybody.
fn reader(who: Who) -> Option<Reader> {
    match who {
        Who::Any => None,
        Who::Id(id) => Some(Reader::Key(id)),
        Who::Name(name) => Some(Reader::User(name.user())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn name() -> Name {
        "web.ada@example.org".parse().unwrap()
    }

    #[test]
    fn named_readers_are_beside_the_names_own_user_and_any_is_everybody() {
        let user = |text: &str| Reader::User(text.parse().unwrap());
        let bob = || "phone.bob@example.org".parse::<Who>().unwrap();
        let only = Readers::Only(vec![user("ada@example.org"), user("bob@example.org")]);
        assert_eq!(of([bob(), bob()], &name()), Ok(only));
        assert_eq!(of([bob(), Who::Any], &name()), Ok(Readers::Public));
        assert_eq!(of([], &name()), Ok(Readers::Only(vec![user("ada@example.org")])));
    }

    #[test]
    fn more_readers_than_a_record_may_have_are_refused_unless_everybody_is_one() {
        let key = |number: u8| Who::Id(whimbrel_base::SecretKey::from_bytes(&[number; 32]).id());
        let many = |count: u8| (1..=count).map(key);
        assert!(of(many(31), &name()).is_ok());
        assert_eq!(of(many(32), &name()), Err(TooManyReaders));
        assert_eq!(of(many(32).chain([Who::Any]), &name()), Ok(Readers::Public));
        assert!(of(many(31).chain([key(1), "laptop.ada@example.org".parse().unwrap()]), &name()).is_ok());
    }
}
