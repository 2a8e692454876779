package bulk

import (
	"math"
	"os"
	"runtime"
	"runtime/metrics"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/measure"
)

// Footprint is the memory use of a run, by component. The components are measured right after a
// garbage collection, early in a run, from time to time, and at its end; the measurement with
// the largest sum is kept. Garbage is the difference between that sum and Peak. All of them add
// up to Peak.
type Footprint struct {
	// Goroutines is the largest number at one time.
	Goroutines int `json:"goroutines"`

	Buffers     int64 `json:"buffers_bytes"`     // of the chunks' pipeline
	Sessions    int64 `json:"sessions_bytes"`    // buffers of connections
	Compressors int64 `json:"compressors_bytes"` // tables and windows
	Lists       int64 `json:"lists_bytes"`       // the catalogue, chunks, the manifest
	Rest        int64 `json:"rest_bytes"`        // of the heap
	Stacks      int64 `json:"stacks_bytes"`      // stacks of goroutines
	Runtime     int64 `json:"runtime_bytes"`     // Go's own, and heap that is free
	Program     int64 `json:"program_bytes"`     // code and what the kernel maps
	Garbage     int64 `json:"garbage_bytes"`     // at the peak
	Peak        int64 `json:"peak_bytes"`        // resident memory, at most
}

// How often goroutines are counted, after how many counts the heap is first measured and how
// often after that, and the sampling rate of its profile in bytes. A measurement takes a
// garbage collection: some milliseconds.
const (
	countEvery  = 5 * time.Millisecond
	firstLook   = 20
	lookEvery   = 400
	profileRate = 32 << 10
)

// WatchFootprint watches this process until stop is called with the size of the pipeline's
// buffers in bytes. Only one run can be watched at a time.
func WatchFootprint() (stop func(buffers int64) Footprint) {
	rate := runtime.MemProfileRate
	runtime.MemProfileRate = profileRate
	done, ended := make(chan struct{}), make(chan struct{})
	most := runtime.NumGoroutine()
	var best Footprint
	look := func() {
		var f Footprint
		if f.read(profileRate); f.live() >= best.live() {
			best = f
		}
	}
	go func() {
		defer close(ended)
		t := time.NewTicker(countEvery)
		defer t.Stop()
		for n := 0; ; n++ {
			select {
			case <-done:
				return
			case <-t.C:
				most = max(most, runtime.NumGoroutine()-1) // without this one
				if n == firstLook || n > 0 && n%lookEvery == 0 {
					look()
				}
			}
		}
	}()
	return func(buffers int64) Footprint {
		close(done)
		<-ended
		look()
		runtime.MemProfileRate = rate
		best.Goroutines = most
		best.settle(buffers)
		return best
	}
}

// live returns the sum of the heap's components.
func (f *Footprint) live() int64 { return f.Sessions + f.Compressors + f.Lists + f.Rest }

// read measures the memory. Until settle divides them, Runtime is all memory of the Go runtime,
// and Rest all of the heap that belongs to no component.
func (f *Footprint) read(rate int) {
	runtime.GC()
	live := f.sites(rate)
	const (
		stacks   = "/memory/classes/heap/stacks:bytes"
		objects  = "/memory/classes/heap/objects:bytes"
		total    = "/memory/classes/total:bytes"
		released = "/memory/classes/heap/released:bytes"
	)
	samples := []metrics.Sample{{Name: stacks}, {Name: objects}, {Name: total}, {Name: released}}
	metrics.Read(samples)
	value := map[string]int64{}
	for _, s := range samples {
		value[s.Name] = int64(s.Value.Uint64())
	}
	f.Stacks = value[stacks]
	f.Rest = max(0, value[objects]-live)
	f.Runtime = value[total] - value[released]
	if u, err := measure.Process(os.Getpid()); err == nil { // otherwise the use of the process is unknown
		f.Program = max(0, u.RSSBytes-f.Runtime)
	}
}

// settle makes the components add up to the peak.
func (f *Footprint) settle(buffers int64) {
	f.Buffers = buffers
	f.Rest = max(0, f.Rest-buffers)
	f.Runtime = max(0, f.Runtime-f.Buffers-f.Sessions-f.Compressors-f.Lists-f.Rest-f.Stacks)
	u, err := measure.Process(os.Getpid())
	if err != nil {
		return
	}
	f.Peak = u.PeakRSSBytes
	parts := f.Buffers + f.Sessions + f.Compressors + f.Lists + f.Rest + f.Stacks + f.Runtime + f.Program
	// Go's total includes memory that was reserved but never touched, which is not resident.
	if over := parts - f.Peak; over > 0 {
		f.Runtime = max(0, f.Runtime-over)
		parts -= over
	}
	f.Garbage = max(0, f.Peak-parts)
}

// sites adds up the heap in use by the function that allocated it, and returns the sum. The
// pipeline's buffers are left out: their size is known exactly.
func (f *Footprint) sites(rate int) int64 {
	n, _ := runtime.MemProfile(nil, false)
	records := make([]runtime.MemProfileRecord, n+50)
	n, ok := runtime.MemProfile(records, false)
	if !ok {
		return 0
	}
	for _, r := range records[:n] {
		bytes := scaled(r.InUseBytes(), r.InUseObjects(), rate)
		if to := f.component(r.Stack()); to != nil {
			*to += bytes
		}
	}
	return f.Sessions + f.Compressors + f.Lists
}

// scaled returns the memory that a sample of the heap profile stands for, as pprof computes it.
func scaled(bytes, objects int64, rate int) int64 {
	if objects == 0 || bytes == 0 {
		return 0
	}
	mean := float64(bytes) / float64(objects)
	return int64(float64(bytes) / (1 - math.Exp(-mean/float64(rate))))
}

// component returns the component to which an allocation belongs, by its stack; nil for the
// rest and for what is counted otherwise. The known function nearest to the leaf decides.
func (f *Footprint) component(stack []uintptr) *int64 {
	frames := runtime.CallersFrames(stack)
	for {
		frame, more := frames.Next()
		name := frame.Function
		switch {
		case strings.Contains(name, "archive.(*ring)"):
			return nil
		case strings.Contains(name, "/klauspost/"), strings.Contains(name, "/fastzstd."), strings.Contains(name, "/pierrec/lz4"), strings.HasPrefix(name, "compress/"):
			return &f.Compressors
		case strings.Contains(name, "/bulk/postgres.Connect"), strings.Contains(name, "/bulk/mysql.Connect"), strings.Contains(name, ".(*Session)."),
			strings.Contains(name, "/internal/wire/"):
			return &f.Sessions
		case strings.Contains(name, "/internal/backup/cmd."):
			return nil
		case strings.Contains(name, "/internal/backup/"):
			return &f.Lists
		}
		if !more {
			return nil
		}
	}
}
