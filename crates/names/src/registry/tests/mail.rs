//! User names for those who read the mail of that address.

use super::*;

#[tokio::test]
async fn a_new_user_name_needs_a_code_that_counts_once_and_for_an_hour() {
    let registry = registry();
    let user = name(USER);
    let (owner, other) = (key(1).id(), key(2).id());
    assert_eq!(registry.may_prove_mail(owner, &user).await, Err(NamesError::NoMail));
    registry.require_mail();
    registry.may_prove_mail(owner, &user).await.unwrap();
    assert_eq!(registry.may_prove_mail(owner, &name(LAPTOP)).await, Err(NamesError::NoMail));
    let refused = Err(NamesError::NotProved(user.clone()));
    assert_eq!(registry.take(&record(&key(1), USER, 1), START).await, refused);
    let old = registry.mail_code(owner, &user, START).unwrap();
    let code = registry.mail_code(owner, &user, START).unwrap();
    assert_eq!(registry.take(&record(&key(1), USER, 1), START).await, refused, "a code that was only sent");
    // An older code, another key's, another name's, and one that has ended.
    for (peer, text, code, at) in [
        (owner, USER, &old, 1),
        (other, USER, &code, 1),
        (owner, "x@example.org", &code, 1),
        (owner, USER, &code, 3600),
    ] {
        let wrong = registry.prove_mail(peer, &name(text), code, after(at));
        assert_eq!(wrong, Err(NamesError::BadMailCode), "{text} {at}");
    }
    assert_eq!(registry.prove_mail(owner, &user, &code.to_uppercase(), after(10)), Ok(after(3610)));
    assert_eq!(registry.prove_mail(owner, &user, &code, after(11)), Err(NamesError::BadMailCode));
    assert_eq!(registry.take(&record(&key(2), USER, 1), after(12)).await, refused, "another key");
    registry.take(&record(&key(1), USER, 1), after(12)).await.unwrap();
    // Once it has the name it needs no mail, nor do its devices.
    let later = after(8000);
    registry.take(&record(&key(1), USER, later.as_millis()), later).await.unwrap();
    let word = delegation(&key(1), LAPTOP, &key(3), later);
    registry.take(&delegated(&key(3), LAPTOP, later.as_millis(), &word), later).await.unwrap();
}

#[tokio::test]
async fn guesses_end_the_code_that_was_sent() {
    let registry = registry();
    registry.require_mail();
    let (user, owner) = (name(USER), key(1).id());
    let code = registry.mail_code(owner, &user, START).unwrap();
    for _ in 0..5 {
        assert_eq!(registry.prove_mail(owner, &user, "guess", START), Err(NamesError::BadMailCode));
    }
    assert_eq!(registry.prove_mail(owner, &user, &code, START), Err(NamesError::BadMailCode));
    let code = registry.mail_code(owner, &user, START).unwrap();
    assert!(registry.prove_mail(owner, &user, &code, START).is_ok());
}
