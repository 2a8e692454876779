package sim

import (
	"bytes"
	"io"
	"time"

	"github.com/weirdb/weir/internal/kvd/consensus"
)

// disk is the disk of a replica: segments of records and the newest snapshot. Records are
// durable when a flush that started after they were written has completed. A crash loses what
// was not written, and an arbitrary tail of what was written and not flushed: a log with
// chained checksums keeps a prefix.
type disk struct {
	w      *World
	random *random
	owner  *replica

	segments []segment
	queue    []diskWrite // submitted, not yet written
	busy     bool        // a flush is in progress
	urgent   bool        // something waits for the queue

	snapshot  savedState   // the newest one
	before    savedState   // the previous one
	delivered []savedState // from other replicas; one becomes the newest when the log says so
	rolling   int          // records after which a segment is full

	median time.Duration // of a flush
	slow   float64       // factor, 1 is normal
	hang   int64         // until this time no operation completes that has started
	began  int64         // start of the flush in progress
	fail   float64       // chance that a flush fails, which stops the replica
}

type segment struct {
	records []consensus.Record
	synced  int
	top     uint64 // highest index of an entry in it
}

type savedState struct {
	index uint64
	data  []byte
}

// diskWrite is a set of records in order. carry starts a segment.
type diskWrite struct {
	records []consensus.Record
	ticket  uint64
	carry   bool
}

func newDisk(w *World, owner *replica, median time.Duration, rolling int) *disk {
	return &disk{w: w, random: w.random.fork("disk" + string(rune('0'+owner.id))), owner: owner, median: median, slow: 1, rolling: rolling, segments: make([]segment, 1)}
}

// write submits records, whose completion Persisted(ticket) reports. If not urgent, the flush
// may wait for further records.
func (d *disk) write(records []consensus.Record, ticket uint64, urgent bool) {
	for _, r := range records {
		if r.Kind == consensus.RecordReset {
			d.accept(r.Index)
		}
	}
	d.queue = append(d.queue, diskWrite{records: records, ticket: ticket})
	d.urgent = d.urgent || urgent
	if d.full() {
		d.queue = append(d.queue, diskWrite{records: d.owner.core.Carry(), carry: true})
	}
	d.start()
	if !d.busy {
		life := d.owner.life
		d.w.after(d.random.between(time.Millisecond, 50*time.Millisecond), func() {
			if d.owner.life == life && len(d.queue) > 0 {
				d.urgent = true
				d.start()
			}
		})
	}
}

// accept makes the snapshot of index, which another replica has sent, the newest one.
func (d *disk) accept(index uint64) {
	for _, s := range d.delivered {
		if s.index == index {
			d.snapshot, d.delivered = s, nil
			return
		}
	}
}

// full reports whether the segment is full, including what waits to be written.
func (d *disk) full() bool {
	n := len(d.segments[len(d.segments)-1].records)
	for _, q := range d.queue {
		if q.carry {
			n = 0
		}
		n += len(q.records)
	}
	return n >= d.rolling
}

// start writes and flushes everything that waits, unless a flush is in progress.
func (d *disk) start() {
	if d.busy || !d.urgent || len(d.queue) == 0 {
		return
	}
	ticket := uint64(0)
	for _, q := range d.queue {
		if q.carry {
			d.segments = append(d.segments, segment{})
		}
		s := &d.segments[len(d.segments)-1]
		s.records = append(s.records, q.records...)
		for _, r := range q.records {
			if r.Kind == consensus.RecordEntry {
				s.top = max(s.top, r.Index)
			}
		}
		ticket = max(ticket, q.ticket)
	}
	d.queue, d.urgent, d.busy = nil, false, true
	if d.w.Defects.EarlyPersisted && ticket > 0 {
		d.owner.enqueue(func(now consensus.Clock) { d.owner.core.Persisted(now, ticket) })
	}
	life := d.owner.life
	d.began = d.w.now
	d.w.after(max(d.random.around(time.Duration(float64(d.median)*d.slow)), d.hang-d.w.now), func() {
		if d.owner.life != life {
			return
		}
		d.busy = false
		d.w.Stats.Syncs++
		if d.random.chance(d.fail) {
			d.w.Stats.Faults.FailedSyncs++
			d.w.note("replica %d: sync fails", d.owner.id)
			d.owner.crash()
			return
		}
		for i := range d.segments {
			d.segments[i].synced = len(d.segments[i].records)
		}
		if ticket > 0 && !d.w.Defects.EarlyPersisted {
			d.owner.enqueue(func(now consensus.Clock) { d.owner.core.Persisted(now, ticket) })
		}
		d.start()
	})
}

// hangs reports whether a flush has taken longer than on any working disk.
func (d *disk) hangs() bool { return d.busy && d.w.now-d.began > int64(hangPatience) }

// hangPatience is longer than any flush of a working disk.
const hangPatience = 2 * time.Second

// release drops the segments that a snapshot up to index covers, once a newer segment is on
// disk, which starts with all that must be carried over.
func (d *disk) release(index uint64) {
	for len(d.segments) > 1 && d.segments[0].top <= index && d.segments[1].synced > 0 {
		d.segments = d.segments[1:]
	}
}

// save writes a snapshot in the background. The frozen state is read only at the end, when the
// machine has advanced.
func (d *disk) save(s *consensus.Snapshot) {
	life := d.owner.life
	d.w.after(d.random.around(time.Duration(float64(d.median)*d.slow*8)), func() {
		if d.owner.life != life {
			return
		}
		var b bytes.Buffer
		_, err := s.WriteTo(&b)
		if err == nil && d.random.chance(d.fail) {
			err = io.ErrShortWrite
			d.w.Stats.Faults.FailedSyncs++
		}
		if err == nil {
			d.w.snapshotTaken(d.owner.id, s.Index, b.Bytes())
		}
		if err == nil && s.Index > d.snapshot.index {
			d.before, d.snapshot = d.snapshot, savedState{s.Index, b.Bytes()}
		}
		d.w.Stats.Snapshots++
		d.owner.enqueue(func(now consensus.Clock) { d.owner.core.SnapshotSaved(now, s.Index, err) })
	})
}

// crash loses what is not flushed, or only its tail.
func (d *disk) crash() {
	d.queue, d.busy, d.urgent, d.delivered = nil, false, false, nil
	if d.w.Defects.SnapshotNotSynced && d.random.chance(0.5) {
		d.snapshot = d.before
	}
	if last := &d.segments[len(d.segments)-1]; last.synced > 0 && d.random.chance(d.w.Defects.LoseSynced) {
		last.synced = d.random.below(last.synced)
	}
	for i := range d.segments {
		s := &d.segments[i]
		unsynced := len(s.records) - s.synced
		keep := 0
		switch {
		case unsynced == 0:
			continue
		case d.random.chance(0.4):
		case d.random.chance(0.4):
			keep = unsynced
		default:
			keep = d.random.below(unsynced + 1)
		}
		d.w.Stats.Faults.TornRecords += uint64(unsynced - keep)
		s.records = s.records[:s.synced+keep]
		s.synced = len(s.records)
		if keep < unsynced { // nothing follows a torn record
			d.segments = d.segments[:i+1]
			return
		}
	}
}

// recovered returns what a replica finds when it starts on this disk.
func (d *disk) recovered() consensus.Recovered {
	r := consensus.Recovered{Records: func(yield func(consensus.Record) error) error {
		for _, s := range d.segments {
			for _, record := range s.records {
				record.Data = append([]byte(nil), record.Data...)
				if err := yield(record); err != nil {
					return err
				}
			}
		}
		return nil
	}}
	if d.snapshot.data != nil {
		r.Snapshot = bytes.NewReader(d.snapshot.data)
	}
	return r
}
