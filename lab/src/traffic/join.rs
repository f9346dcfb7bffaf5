//! Fates and the application's log, told of each other.

use std::collections::HashMap;

use crate::backend::Visit;
use crate::fate::Fate;

/// Fills in which pod served each request last, and how often the application ran it.
pub(crate) fn join(fates: &mut [Fate], visits: &[Visit]) {
    let mut by_id: HashMap<&str, Vec<&Visit>> = HashMap::new();
    for visit in visits {
        by_id.entry(&visit.id).or_default().push(visit);
    }
    for fate in fates {
        let visits = by_id.get(fate.id.as_str()).map(Vec::as_slice).unwrap_or_default();
        fate.runs = visits.iter().map(|visit| u32::from(visit.ran)).sum();
        let last = visits.iter().max_by(|a, b| a.started_s.total_cmp(&b.started_s));
        fate.pod = last.map(|visit| visit.pod.clone()).filter(|pod| !pod.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::summary::tests::whole;

    fn visit(id: &str, pod: &str, started_s: f64, ran: bool) -> Visit {
        let (id, pod, path) = (id.to_owned(), pod.to_owned(), "/fast".to_owned());
        Visit { id, request_id: String::new(), pod, path, started_s, ended_s: None, ran, finished: false }
    }

    #[test]
    fn a_request_that_ran_twice_is_a_loss_and_belongs_to_the_pod_that_served_it_last() {
        let mut fates = [whole("page-0", 1.0), whole("page-1", 1.1), whole("page-10", 1.2)];
        let visits =
            [visit("page-1", "b", 2.0, true), visit("page-1", "a", 1.1, true), visit("page-10", "a", 1.2, true)];
        join(&mut fates, &visits);
        assert_eq!((fates[0].runs, fates[0].pod.as_deref()), (0, None));
        assert_eq!((fates[1].runs, fates[1].pod.as_deref()), (2, Some("b")));
        assert_eq!(fates[1].loss().as_deref(), Some("doubled"));
        assert_eq!((fates[2].runs, fates[2].pod.as_deref()), (1, Some("a")));
    }

    #[test]
    fn a_request_of_which_only_a_part_arrived_did_not_run() {
        let mut fates = [whole("upload-0", 1.0)];
        join(&mut fates, &[visit("upload-0", "a", 1.0, false), visit("upload-0", "b", 1.5, true)]);
        assert_eq!((fates[0].runs, fates[0].pod.as_deref()), (1, Some("b")));
    }
}
