package archive

import (
	"context"
	"sync/atomic"
	"time"
)

// Pipeline says for how long each stage of the chunks of a writer worked, and for how
// long it waited for the one before and the one behind it, over all chunks together.
// Waits are timed only where one happens, and work is what is left of a stage's
// life, so that nothing is paid for a byte that flows.
type Pipeline struct {
	// Chunks counts those that these times are of.
	Chunks int64 `json:"chunks"`

	// Read is the source: its input is the server, as far as it tells by AddWait;
	// its output are free buffers, which the compressor gives back, and at the end the
	// completion of the chunk, which is Finish. Sums of rows are its work.
	Read Stage `json:"read"`

	// Finish is the part of Read's wait for its output in which chunks were completed:
	// what was in the buffers is compressed and stored, and storage makes it durable.
	Finish time.Duration `json:"finish_ns"`

	// Compress includes the hash of the plain bytes.
	Compress Stage `json:"compress"`

	// Store has its parts: the hash of what is stored, encryption, a rate limit, and
	// the storage itself, which is written to and, at last, makes it durable.
	Store   Stage         `json:"store"`
	Hash    time.Duration `json:"hash_ns"`    // hashing the stored bytes
	Encrypt time.Duration `json:"encrypt_ns"` // encrypting them
	Limit   time.Duration `json:"limit_ns"`   // waiting for the rate limit
	Write   time.Duration `json:"write_ns"`   // writing to the storage
	Commit  time.Duration `json:"commit_ns"`  // waiting until the storage has made them durable
}

// Stage is how the time of one stage was spent.
type Stage struct {
	Busy   time.Duration `json:"busy_ns"`        // time spent working
	Input  time.Duration `json:"input_wait_ns"`  // time spent waiting for the stage before
	Output time.Duration `json:"output_wait_ns"` // time spent waiting for the stage behind
}

// Total is all of its time.
func (s Stage) Total() time.Duration { return s.Busy + s.Input + s.Output }

// Shares says what the sources of a pipeline, that is those who read from the server,
// spent their time on. They add up to 1 when there was any.
type Shares struct {
	Server     float64 `json:"server"`     // waiting for rows
	Own        float64 `json:"own"`        // taking rows apart and summing them
	Compressor float64 `json:"compressor"` // waiting for a buffer that is compressed
	Storage    float64 `json:"storage"`    // waiting for a buffer that is stored, and for durability
}

// Shares tells who kept the sources waiting. A wait for the compressor counts as one
// for the storage as far as the compressor waited for that.
func (p Pipeline) Shares() Shares {
	all := p.Read.Total().Seconds()
	if all <= 0 {
		return Shares{}
	}
	output := p.Read.Output - p.Finish
	storage := min(output, p.Compress.Output)
	return Shares{
		Server: p.Read.Input.Seconds() / all, Own: p.Read.Busy.Seconds() / all,
		Compressor: (output - storage).Seconds() / all, Storage: (storage + p.Finish).Seconds() / all,
	}
}

// clocks are the counters behind a Pipeline, in nanoseconds.
type clocks struct {
	chunks                              atomic.Int64
	read, readInput, readFull, finish   atomic.Int64 // read is the whole life
	compress, compressInput, storesFull atomic.Int64
	store, storeInput                   atomic.Int64
	hash, top, limit, write, commit     atomic.Int64
}

// since adds the time since began to a counter.
func since(c *atomic.Int64, began time.Time) { c.Add(int64(time.Since(began))) }

func (c *clocks) pipeline() Pipeline {
	of := func(n *atomic.Int64) time.Duration { return time.Duration(n.Load()) }
	stage := func(all, input, output time.Duration) Stage {
		return Stage{Busy: max(0, all-input-output), Input: input, Output: output}
	}
	finish := of(&c.finish)
	return Pipeline{
		Chunks: c.chunks.Load(),
		Read:   stage(of(&c.read), of(&c.readInput), of(&c.readFull)+finish), Finish: finish,
		Compress: stage(of(&c.compress), of(&c.compressInput), of(&c.storesFull)),
		Store:    stage(of(&c.store), of(&c.storeInput), 0),
		Hash:     of(&c.hash), Limit: of(&c.limit), Write: of(&c.write), Commit: of(&c.commit),
		// The last stage's time in and above the object, without the time inside it.
		Encrypt: max(0, of(&c.top)-of(&c.hash)-of(&c.limit)-of(&c.write)),
	}
}

// receive takes a buffer of the stage before, and counts the wait where there is one.
// The context ends it.
func receive(ctx context.Context, from <-chan []byte, wait *atomic.Int64) (b []byte, more bool, err error) {
	select {
	case b, more = <-from:
		return b, more, nil
	default:
	}
	defer since(wait, time.Now())
	select {
	case b, more = <-from:
		return b, more, nil
	case <-ctx.Done():
		return nil, false, context.Cause(ctx)
	}
}
