package notice

import (
	"sync"
	"time"
)

// metricsInterval is how often the metrics of a receiver are written.
const metricsInterval = 5 * time.Second

// KeepTextfile writes the metrics of a receiver into a textfile every few seconds until stop is
// called, and then once more. failed is called with each error before that. An empty path means
// no file.
func KeepTextfile(path string, metrics func() []Metric, failed func(error)) (stop func() error) {
	if path == "" {
		return func() error { return nil }
	}
	ended := make(chan struct{})
	var writing sync.WaitGroup
	writing.Go(func() {
		for {
			if err := WriteTextfile(path, metrics()); err != nil {
				failed(err)
			}
			select {
			case <-ended:
				return
			case <-time.After(metricsInterval):
			}
		}
	})
	return func() error {
		close(ended)
		writing.Wait()
		return WriteTextfile(path, metrics())
	}
}
