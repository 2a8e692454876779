package archive

import (
	"context"
	"sync/atomic"
	"time"
)

// Pipeline says for how long each stage of a writer's chunks worked, and for how long it waited
// for the stages before and after it, summed over all chunks. Only waits are measured; work is
// the rest of a stage's time, so that no byte costs a measurement.
type Pipeline struct {
	// Chunks is the number of chunks in these times.
	Chunks int64 `json:"chunks"`

	// Read is the source. Its input is the server, as far as the caller reports that with
	// AddWait; its output are free buffers from the compressor, and at the end the completion
	// of the chunk, which is Finish. Checksums of rows are part of its work.
	Read Stage `json:"read"`

	// Finish is the part of Read's wait for its output in which chunks were completed: the
	// buffers are compressed and stored, and the storage makes them durable.
	Finish time.Duration `json:"finish_ns"`

	// Compress includes the hash of the plain bytes.
	Compress Stage `json:"compress"`

	// Store has these parts: hashing the stored bytes, encryption, the rate limit, writing to
	// the storage, and waiting until the storage has made the bytes durable.
	Store   Stage         `json:"store"`
	Hash    time.Duration `json:"hash_ns"`    // hashing the stored bytes
	Encrypt time.Duration `json:"encrypt_ns"` // encrypting them
	Limit   time.Duration `json:"limit_ns"`   // waiting for the rate limit
	Write   time.Duration `json:"write_ns"`   // writing to the storage
	Commit  time.Duration `json:"commit_ns"`  // waiting until the storage has made them durable
}

// Stage says how the time of one stage was spent.
type Stage struct {
	Busy   time.Duration `json:"busy_ns"`        // time spent working
	Input  time.Duration `json:"input_wait_ns"`  // time spent waiting for the stage before
	Output time.Duration `json:"output_wait_ns"` // time spent waiting for the stage after it
}

// Total returns the sum of all three.
func (s Stage) Total() time.Duration { return s.Busy + s.Input + s.Output }

// Shares say how the sources of a pipeline, which read from the server, spent their time. They
// add up to 1, or are all 0 if there was no time.
type Shares struct {
	Server     float64 `json:"server"`     // waiting for rows
	Own        float64 `json:"own"`        // parsing rows and computing checksums
	Compressor float64 `json:"compressor"` // waiting for a buffer to be compressed
	Storage    float64 `json:"storage"`    // waiting for a buffer to be stored, and for durability
}

// Shares returns what the sources spent their time on. Waiting for the compressor counts as
// waiting for the storage to the degree to which the compressor waited for the storage.
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

// clocks are the counters of a Pipeline, in nanoseconds.
type clocks struct {
	chunks                              atomic.Int64
	read, readInput, readFull, finish   atomic.Int64 // read is the whole time
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
		// The time of the last stage outside of the object's methods.
		Encrypt: max(0, of(&c.top)-of(&c.hash)-of(&c.limit)-of(&c.write)),
	}
}

// receive takes a buffer from the stage before, and measures the wait if there is one. It
// returns early if the context ends.
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
