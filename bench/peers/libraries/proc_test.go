package libraries_test

import (
	"os/exec"
	"testing"

	"github.com/prometheus/procfs"

	"github.com/weirdb/weir/internal/measure"
)

// BenchmarkProc reads the counters of a process: CPU time, memory, context switches, calls.
func BenchmarkProc(b *testing.B) {
	one := exec.CommandContext(b.Context(), "sleep", "3600") // of one thread: weir adds up those of others
	must(b, one.Start())
	b.Cleanup(func() { _ = one.Wait() }) // its context has ended
	pid := one.Process.Pid
	b.Run("weir", func(b *testing.B) {
		defer cost(b)()
		for b.Loop() {
			if _, err := measure.Process(pid); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("procfs", func(b *testing.B) {
		defer cost(b)()
		for b.Loop() {
			p, err := procfs.NewProc(pid)
			must(b, err)
			_, err = p.Stat()
			must(b, err)
			_, err = p.NewStatus()
			must(b, err)
			_, err = p.IO()
			must(b, err)
		}
	})
}
