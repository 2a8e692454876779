package replica

import (
	"maps"

	"github.com/weirdb/weir/internal/kvd/peer"
	"github.com/weirdb/weir/internal/kvd/wal"
)

// A replica whose directory was lost begins an empty log under its old number. While
// others run, they know what it had acknowledged. For the case that all have been restarted,
// each replica records on its disk with which log it has met each voter. It does so before
// it processes anything from that voter, so that every vote and acknowledgement that
// counts here can still be attributed after a restart.

// otherLog reports that a replica comes with another log than it was met with.
func (p *peers) otherLog(who peer.Remote) bool {
	if p.cfg.Memory || who.LogID == ([8]byte{}) {
		return false
	}
	log, met := p.disk.log.Met(who.ID)
	return met && log != wal.LogTag(who.LogID)
}

// meet records with which log a voter was met.
func (p *peers) meet(id uint64, log [8]byte) error {
	if p.cfg.Memory || log == ([8]byte{}) {
		return nil
	}
	if _, met := p.disk.log.Met(id); met {
		return nil
	}
	s := p.Status()
	voter, keep := false, []uint64{}
	for _, m := range s.Members {
		keep = append(keep, m.ID)
		voter = voter || m.ID == id && !m.Learner
	}
	if !voter {
		return nil
	}
	return p.disk.log.Meet(id, wal.LogTag(log), append(keep, s.Leaves...))
}

// noteEvery is the number of ticks after which the positions acknowledged by other replicas are
// recorded again on the disk, if they have advanced: when all replicas have been restarted, they
// reveal an older copy of a directory.
const noteEvery = 500

// noteAcked records them in the background. The core goroutine calls it at each tick.
func (p *peers) noteAcked(ticks int) {
	if p.untilNote += ticks; p.untilNote < noteEvery || p.cfg.Memory || p.stopping.Load() {
		return
	}
	p.untilNote = 0
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.noting || maps.Equal(p.acked, p.noted) {
		return
	}
	p.noting = true
	p.meets.Go(func() { // the disk may take its time
		p.writeAcked()
		p.mu.Lock()
		p.noting = false
		p.mu.Unlock()
	})
}

// writeAcked records them now. If that fails, only a safeguard is lost.
func (p *peers) writeAcked() {
	p.mu.Lock()
	acked := maps.Clone(p.acked)
	same := p.cfg.Memory || maps.Equal(acked, p.noted)
	p.mu.Unlock()
	if same {
		return
	}
	if err := p.disk.log.NoteAcked(acked); err != nil {
		p.cfg.Log.Warn("what other replicas have acknowledged is not noted", "error", err)
		return
	}
	p.mu.Lock()
	p.noted = acked
	p.mu.Unlock()
}

// meetPromoted records the logs of replicas that have become voters while they were
// connected. The core goroutine calls it at each tick.
func (p *peers) meetPromoted(s *Status) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range s.Members {
		log, linked := p.logs[m.ID]
		if m.Learner || !linked || p.meeting[m.ID] || p.stopping.Load() {
			continue
		}
		if _, met := p.disk.log.Met(m.ID); met {
			continue
		}
		p.meeting[m.ID] = true
		p.meets.Go(func() { // the disk may take its time
			if err := p.meet(m.ID, log); err != nil {
				p.cfg.Log.Warn("the log of a new voter is not noted", "peer", m.ID, "error", err)
			}
			p.mu.Lock()
			delete(p.meeting, m.ID)
			p.mu.Unlock()
		})
	}
}
