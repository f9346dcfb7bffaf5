use std::collections::BTreeMap;

/// Places for streams that lie close together.
const PLACES: usize = 512;

/// What is known of each stream in flight, by its context's id.
///
/// The host counts ids up, so their last digits name a place each, and the one of a stream that has ended is free when its turn
/// comes again. Where it is not (a stream that lasts, more streams than places), the newcomer goes into a tree: dearer, and rare.
pub(crate) struct Streams<T> {
    near: Vec<Option<(u32, T)>>,
    far: BTreeMap<u32, T>,
}

impl<T> Streams<T> {
    pub(crate) const fn new() -> Self {
        Self { near: Vec::new(), far: BTreeMap::new() }
    }

    /// Makes the places, before the first stream; without them every stream goes into the tree.
    pub(crate) fn make_room(&mut self) {
        self.near.resize_with(PLACES, || None);
    }

    pub(crate) fn insert(&mut self, context: u32, stream: T) {
        match self.near.get_mut(place(context)) {
            Some(free @ None) => *free = Some((context, stream)),
            Some(Some((id, own))) if *id == context => *own = stream,
            Some(Some(_)) | None => self.insert_far(context, stream),
        }
    }

    pub(crate) fn remove(&mut self, context: u32) -> Option<T> {
        match self.near.get_mut(place(context)) {
            Some(own) if own.as_ref().is_some_and(|(id, _)| *id == context) => own.take().map(|(_, stream)| stream),
            Some(_) | None => self.remove_far(context),
        }
    }

    #[cfg(any(test, feature = "plant"))]
    pub(crate) fn get(&self, context: u32) -> Option<&T> {
        let near = self.near.get(place(context)).and_then(Option::as_ref).filter(|(id, _)| *id == context);
        near.map(|(_, stream)| stream).or_else(|| self.far.get(&context))
    }

    #[cold]
    fn insert_far(&mut self, context: u32, stream: T) {
        self.far.insert(context, stream);
    }

    #[cold]
    fn remove_far(&mut self, context: u32) -> Option<T> {
        self.far.remove(&context)
    }
}

fn place(context: u32) -> usize {
    context as usize % PLACES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roomy<T>() -> Streams<T> {
        let mut streams = Streams::new();
        streams.make_room();
        streams
    }

    #[test]
    fn without_places_every_stream_is_found_too() {
        let mut streams = Streams::new();
        streams.insert(7, "seven");
        assert_eq!(streams.get(7), Some(&"seven"));
        assert_eq!(streams.remove(7), Some("seven"));
    }

    #[test]
    fn a_stream_is_found_until_it_is_taken_out() {
        let mut streams = roomy();
        streams.insert(7, "seven");
        assert_eq!(streams.get(7), Some(&"seven"));
        assert_eq!(streams.remove(7), Some("seven"));
        assert_eq!(streams.get(7), None);
        assert_eq!(streams.remove(7), None);
    }

    #[test]
    fn a_stream_that_lasts_keeps_its_place_and_nobody_loses_theirs() {
        let mut streams = roomy();
        let step = u32::try_from(PLACES).unwrap();
        // Of the same place, all of them; zero and the last id as well.
        let ids: Vec<u32> = (0..5).map(|turn| turn * step).chain([u32::MAX - step + 1]).collect();
        for id in &ids {
            streams.insert(*id, *id);
        }
        for id in ids.iter().rev() {
            assert_eq!(streams.get(*id), Some(id));
        }
        // The first is gone, its place goes to a newcomer, and those in the tree are still found.
        assert_eq!(streams.remove(0), Some(0));
        streams.insert(9 * step, 9 * step);
        for id in ids.iter().skip(1).chain([&(9 * step)]) {
            assert_eq!(streams.remove(*id), Some(*id));
        }
        assert!(streams.far.is_empty() && streams.near.iter().all(Option::is_none));
    }

    #[test]
    fn more_streams_than_places_are_all_found() {
        let mut streams = roomy();
        for id in 1..5_000_u32 {
            streams.insert(id, id);
        }
        assert!((1..5_000).all(|id| streams.remove(id) == Some(id)));
        assert!(streams.far.is_empty());
    }

    #[test]
    fn a_context_without_a_stream_takes_nobody_elses() {
        let mut streams = roomy();
        streams.insert(1, 1);
        assert_eq!(streams.remove(1 + u32::try_from(PLACES).unwrap()), None);
        assert_eq!(streams.remove(1), Some(1));
    }
}
