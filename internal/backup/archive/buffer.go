package archive

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// A bufferPool owns all buffers that chunks use: a fixed number of leases, each with a fixed
// number of buffers of a fixed size. An open chunk holds a whole lease or none, so chunks
// cannot deadlock by waiting for each other's buffers. Buffers are allocated when first needed
// and never freed. It is safe for concurrent use.
type bufferPool struct {
	size     int
	perLease int
	total    int
	leases   chan *lease

	mu           sync.Mutex
	leased, most int

	allocated                         atomic.Int64
	leaseWaits, fillWaits, storeWaits atomic.Int64
}

// newBufferPool returns a pool of n leases with per buffers of size bytes each. Waits for a
// buffer are counted in clocks.
func newBufferPool(n, per, size int, clocks *clocks) *bufferPool {
	p := &bufferPool{size: size, perLease: per, total: n * per, leases: make(chan *lease, n)}
	for range n {
		p.leases <- &lease{
			pool:   p,
			plain:  newRing(p, per-per/2, &p.fillWaits, &clocks.readFull),
			stored: newRing(p, per/2, &p.storeWaits, &clocks.storesFull),
		}
	}
	return p
}

// lease waits for a free lease.
func (p *bufferPool) lease(ctx context.Context) (*lease, error) {
	var l *lease
	select {
	case l = <-p.leases:
	default:
		p.leaseWaits.Add(1)
		select {
		case l = <-p.leases:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leased += p.perLease
	p.most = max(p.most, p.leased)
	return l, nil
}

func (p *bufferPool) stats() BufferStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return BufferStats{
		Size: p.size, Total: p.total, Leased: p.leased, MostLeased: p.most,
		Allocated:  int(p.allocated.Load()),
		LeaseWaits: p.leaseWaits.Load(), FillWaits: p.fillWaits.Load(), StoreWaits: p.storeWaits.Load(),
	}
}

// A lease is the memory of one chunk: a ring of buffers before compression and one after it.
type lease struct {
	pool          *bufferPool
	plain, stored *ring
}

// release returns the lease. Its buffers must not be used after that.
func (l *lease) release() {
	l.plain.refill()
	l.stored.refill()
	l.pool.mu.Lock()
	l.pool.leased -= l.pool.perLease
	l.pool.mu.Unlock()
	l.pool.leases <- l
}

// A ring is a fixed set of buffers between two stages: the first stage gets a free one, fills
// it and sends it; the second puts it back. Each side is used by one goroutine.
type ring struct {
	pool  *bufferPool
	all   [][]byte
	n     int // maximum number of buffers
	free  chan []byte
	waits *atomic.Int64
	time  *atomic.Int64 // total time waited, in nanoseconds
}

func newRing(p *bufferPool, n int, waits, time *atomic.Int64) *ring {
	return &ring{pool: p, n: n, free: make(chan []byte, n), waits: waits, time: time}
}

// get returns an empty buffer. It waits while all are in use.
func (r *ring) get(ctx context.Context) ([]byte, error) {
	select {
	case b := <-r.free:
		return b, nil
	default:
	}
	if len(r.all) < r.n {
		b := make([]byte, 0, r.pool.size)
		r.all = append(r.all, b)
		r.pool.allocated.Add(1)
		return b, nil
	}
	r.waits.Add(1)
	defer since(r.time, time.Now())
	select {
	case b := <-r.free:
		return b, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// put returns a buffer.
func (r *ring) put(b []byte) { r.free <- b[:0] }

// refill makes all buffers free, including those that an aborted chunk was using.
func (r *ring) refill() {
	for len(r.free) > 0 {
		<-r.free
	}
	for _, b := range r.all {
		r.free <- b
	}
}

// BufferStats describe a buffer pool: how much memory it holds at most, and
// which side of the pipeline waits for the other.
type BufferStats struct {
	// Size is the size of a buffer in bytes, Total the maximum number of buffers: Size x Total
	// is the most memory that the pool uses.
	Size, Total int

	// Leased is the number of buffers that open chunks hold now, MostLeased the highest number
	// so far.
	Leased, MostLeased int

	// Allocated is the number of buffers that were allocated so far, at most Total.
	Allocated int

	// LeaseWaits counts chunks that waited to be opened. FillWaits counts how often the source
	// of a chunk waited because compression was slower, StoreWaits how often compression waited
	// because the storage was slower.
	LeaseWaits, FillWaits, StoreWaits int64
}
