package bulk

import (
	"sync"
	"sync/atomic"
	"time"
)

// Progress counts what a run has done, for a progress bar, a log or metrics. The run adds; any
// goroutine may read. All methods are safe for concurrent use, and do nothing on a nil
// *Progress.
type Progress struct {
	totalBytes, bytes atomic.Int64
	totalSteps, steps atomic.Int64
	rows              atomic.Int64

	mu      sync.Mutex // guards the fields below
	phase   string
	started time.Time
	now     map[int]string
	next    int
}

// Snapshot is the state of a run at one moment.
type Snapshot struct {
	// Phase is the current phase, such as "data" or "indexes".
	Phase string `json:"phase"`

	// Active are the objects in progress, such as "public.orders".
	Active []string `json:"active,omitempty"`

	// Bytes of TotalBytes are done. The total of a backup is an estimate, the size of its
	// tables on the server's disk; that of a restore is exact.
	Bytes      int64 `json:"bytes"`
	TotalBytes int64 `json:"total_bytes"`

	// Steps of TotalSteps are done: chunks, indexes, constraints.
	Steps      int64 `json:"steps"`
	TotalSteps int64 `json:"total_steps"`

	Rows int64 `json:"rows"`

	// Elapsed is the time since the first phase began.
	Elapsed time.Duration `json:"elapsed_ns"`
}

// Rate returns bytes per second since the start.
func (s Snapshot) Rate() float64 {
	if s.Elapsed <= 0 {
		return 0
	}
	return float64(s.Bytes) / s.Elapsed.Seconds()
}

// Left estimates the remaining time from the remaining bytes; 0 if unknown.
func (s Snapshot) Left() time.Duration {
	if s.Bytes <= 0 || s.TotalBytes <= s.Bytes {
		return 0
	}
	return time.Duration(float64(s.Elapsed) * float64(s.TotalBytes-s.Bytes) / float64(s.Bytes))
}

// Phase begins a phase.
func (p *Progress) Phase(name string) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.phase = name
	if p.started.IsZero() {
		p.started = time.Now()
	}
}

// Expect adds to the totals.
func (p *Progress) Expect(bytes, steps int64) {
	if p == nil {
		return
	}
	p.totalBytes.Add(bytes)
	p.totalSteps.Add(steps)
}

// Add adds bytes and rows that are done.
func (p *Progress) Add(bytes, rows int64) {
	if p == nil {
		return
	}
	p.bytes.Add(bytes)
	p.rows.Add(rows)
}

// A Piece counts the bytes of one piece of work of estimated size as they are processed, so
// that a long piece does not look like a stall. It is used by one goroutine.
type Piece struct {
	p           *Progress
	size, count int64
}

// Piece begins a piece of about size bytes.
func (p *Progress) Piece(size int64) *Piece { return &Piece{p: p, size: size} }

// Add adds bytes, up to the estimated size of the piece.
func (s *Piece) Add(bytes int64) {
	bytes = min(bytes, s.size-s.count)
	s.count += bytes
	s.p.Add(bytes, 0)
}

// Done adds the rest of the estimated size, and the rows.
func (s *Piece) Done(rows int64) {
	s.p.Add(s.size-s.count, rows)
	s.count = s.size
}

// Begin records that work on an object begins. The caller calls end when this step has ended,
// with or without success.
func (p *Progress) Begin(object string) (end func()) {
	if p == nil {
		return func() {}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now == nil {
		p.now = map[int]string{}
	}
	id := p.next
	p.next++
	// Phases after the data (a comparison, statistics) have steps that were not in the total.
	if total := p.totalSteps.Load(); total > 0 && int64(p.next) > total {
		p.totalSteps.Add(int64(p.next) - total)
	}
	p.now[id] = object
	return func() {
		p.mu.Lock()
		delete(p.now, id)
		p.mu.Unlock()
		p.steps.Add(1)
	}
}

// Snapshot returns the state at this moment.
func (p *Progress) Snapshot() Snapshot {
	if p == nil {
		return Snapshot{}
	}
	s := Snapshot{
		Bytes: p.bytes.Load(), TotalBytes: p.totalBytes.Load(),
		Steps: p.steps.Load(), TotalSteps: p.totalSteps.Load(), Rows: p.rows.Load(),
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s.Phase = p.phase
	if !p.started.IsZero() {
		s.Elapsed = time.Since(p.started)
	}
	for id := range p.next { // in the order in which they began
		if o, ok := p.now[id]; ok {
			s.Active = append(s.Active, o)
		}
	}
	return s
}
