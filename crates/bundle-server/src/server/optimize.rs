//! Better frames for images that were packed quickly, and the end of the quick ones.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use pierhead_oci::Digest;

use super::counters::count;
use super::cpu_share::CpuShare;
use super::indexing::HEADER_LEVEL;
use super::plan_file::{Draft, PlanFile, PlanRecord, packed};
use super::plan_store::key;
use super::planner::TocSizes;
use super::{Inner, lock};
use crate::directory::Stage;
use crate::pack::{self, RecordLocation};
use pierhead_bundle::format::Frames;
use pierhead_toc::layer::Pace as _;
use pierhead_toc::{Error, FileDigest, ImageToc};

impl Inner {
    /// Packs the frames of an image anew at the level of the configuration, and plans with them. Stopped or killed, it
    /// goes on where it was: what the plans name is what is left to do.
    pub(super) fn optimize(&self, manifest: &Digest, share: &mut CpuShare) -> Result<(), Error> {
        {
            let images = lock(&self.images);
            let stage = images.get(manifest).map(|row| &row.row.stage);
            // Forgotten since, or on its way to be packed again.
            if !matches!(stage, Some(Stage::Fast(_))) {
                return Ok(());
            }
        }
        match self.better(manifest, share) {
            // A frame or a plan is lost: nothing is left to improve, and whoever asks has it made again.
            Err(Error::Missing(_) | Error::Malformed { .. }) => {}
            Ok(false) => return Ok(()),
            done => drop(done?),
        }
        // Not if it was forgotten or lost meanwhile.
        let is_fast = {
            let images = lock(&self.images);
            let stage = images.get(manifest).map(|row| &row.row.stage);
            matches!(stage, Some(Stage::Fast(_)))
        };
        if !is_fast {
            return self.give_up();
        }
        self.settle(manifest, Some(Stage::Ready))?;
        let cancelled = self.give_up();
        count(&self.counters.optimized);
        cancelled
    }

    /// Whether it has better frames by now; there may be no room for them.
    fn better(&self, manifest: &Digest, share: &mut CpuShare) -> Result<bool, Error> {
        // Sound now, and read again afterwards: it is not in memory while frames are compressed.
        drop(self.made_table(manifest)?);
        let mut places = HashSet::new();
        let keys = [false, true].map(|layers| key(manifest, &[], layers));
        for key in &keys {
            let plan = self.open(key)?;
            let plan = plan.ok_or_else(|| Error::Missing(format!("the plan of {manifest}")))?;
            places.extend(packed(&plan));
        }
        let places: Vec<_> = places.into_iter().collect();
        if !self.has_room(&places) {
            tracing::warn!(
                %manifest,
                "an image stays as it was packed at first: bundle.size has no room for it twice"
            );
            return Ok(false);
        }
        let made = pack::optimize(
            &places,
            &self.packs,
            &*self.directory,
            self.config.optimized_level,
            &mut |bytes| share.pause(bytes),
            &mut || self.directory.flush(),
        )?;
        let table = self.made_table(manifest)?;
        for key in &keys {
            self.plan_anew(key, &table, &made)?;
        }
        Ok(true)
    }

    /// Whether better frames, which hardly ever are longer, have room beside the quick ones: else these would leave
    /// for them, and the image be packed quickly again when it is asked for, and so on.
    fn has_room(&self, places: &[RecordLocation]) -> bool {
        let bytes = |place: &RecordLocation| u64::from(place.len);
        let all: u64 = places.iter().map(bytes).sum();
        let fast = places.iter().filter(|it| pack::is_fast(it.pack));
        let more: u64 = fast.map(bytes).sum();
        // Indexes, and what packs that are written to have not used yet.
        all + more + (all + more) / 16 <= self.config.pack_budget
    }

    /// Replaces a plan by one that has the same frames in other places.
    fn plan_anew(
        &self,
        key: &FileDigest,
        table: &ImageToc,
        made: &HashMap<RecordLocation, RecordLocation>,
    ) -> Result<(), Error> {
        let missing = || Error::Missing("a plan".to_owned());
        let plan = self.open(key)?.ok_or_else(missing)?;
        let mut header = plan.header()?;
        let sizes = TocSizes {
            want: table,
            base_images: &[],
        };
        let mut draft = Draft::begin(&self.paths.plan(key))?;
        let mut frames = Vec::new();
        for (nth, frame) in (0..).zip(header.frames.cursor(&sizes)?) {
            let mut frame = frame?;
            let Some(PlanRecord::InPack(place)) = plan.record(nth) else {
                return Err(missing());
            };
            let place = made.get(&place).copied().unwrap_or(place);
            frame.coding = self.packs.frame(&place)?.coding;
            draft.packed(place, &self.packs.head(&place)?);
            frames.push(frame);
        }
        header.frames = Frames::encode(&frames, &sizes)?;
        header.records = draft.bytes();
        let (prelude, body) = header.encode(HEADER_LEVEL)?;
        self.finish(key, draft, &prelude, &body).map(drop)
    }

    /// The packs that the fresh plans of an image name.
    pub(super) fn packs_of(&self, manifest: &Digest) -> HashSet<u32> {
        // The one with layers has all that the other one has. SentFile aside: nobody asked for it.
        let plan = PlanFile::open(&self.paths.plan(&key(manifest, &[], true)));
        let plan = plan.ok();
        plan.iter()
            .flat_map(packed)
            .map(|place| place.pack)
            .collect()
    }

    /// Drops the quick packs that nobody needs: no image waits for better frames than theirs, and no reader has a plan
    /// that names them.
    pub(super) fn give_up(&self) -> Result<(), Error> {
        // What is being packed is named by no plan yet: then the tidying does it.
        let Ok(_packing) = self.packing.try_write() else {
            return Ok(());
        };
        let fast: Vec<_> = lock(&self.images)
            .iter()
            .filter(|(_, row)| matches!(row.row.stage, Stage::Fast(_)))
            .map(|(manifest, _)| *manifest)
            .collect();
        let mut used: HashSet<u32> = fast.iter().flat_map(|it| self.packs_of(it)).collect();
        let cached: Vec<_> = lock(&self.open_plans)
            .iter()
            .map(|(_, plan)| plan.clone())
            .collect();
        let alive: Vec<_> = lock(&self.alive)
            .iter()
            .filter_map(|plan| plan.upgrade())
            .collect();
        for plan in &alive {
            // Here, and where it is kept for the next reader.
            let open_plans = cached.iter().filter(|it| Arc::ptr_eq(it, plan)).count();
            if Arc::strong_count(plan) > 1 + 2 * open_plans {
                used.extend(packed(plan).map(|place| place.pack));
            }
        }
        drop((cached, alive));
        used.extend(self.superseded_packs()?);
        let gone = self.packs.give_up(&|number| used.contains(&number))?;
        if gone > 0 {
            let packs = &self.packs;
            self.directory
                .retain_places(|places| places.iter().all(|place| packs.contains(place)))?;
        }
        Ok(())
    }
}
