package notice

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// LastSuccess is the metric whose value remains after failures; alerts are based on it.
const LastSuccess = "weir_backup_last_success_timestamp_seconds"

// Metric is a sample in a textfile, with its help text.
type Metric struct {
	Name, Help, Labels string
	Value              float64
}

// writeMetrics replaces a textfile with the outcome of a backup.
func writeMetrics(path string, o *Outcome) error {
	labels := fmt.Sprintf("{label=%q}", o.Label)
	ended := float64(o.Started.Add(o.Elapsed).UnixMilli()) / 1000
	success, last := 0.0, ended
	if o.OK {
		success = 1
	} else {
		var err error
		if last, err = ReadMetric(path, LastSuccess+labels); err != nil {
			return err
		}
	}
	return WriteTextfile(path, []Metric{
		{"weir_backup_success", "Whether the last backup succeeded.", labels, success},
		{"weir_backup_last_run_timestamp_seconds", "When the last backup ended.", labels, ended},
		{LastSuccess, "When the last backup that succeeded ended; 0: none did.", labels, last},
		{"weir_backup_duration_seconds", "How long the last backup took.", labels, o.Elapsed.Seconds()},
		{"weir_backup_tables", "Tables in the last backup.", labels, float64(o.Tables)},
		{"weir_backup_rows", "Rows in the last backup.", labels, float64(o.Rows)},
		{"weir_backup_plain_bytes", "Bytes in the last backup before compression.", labels, float64(o.PlainBytes)},
		{"weir_backup_stored_bytes", "Bytes in the storage of the last backup.", labels, float64(o.StoredBytes)},
		{"weir_backup_workers_peak", "How many workers read rows of a database at once, at most, in the last backup.", labels, float64(o.WorkersPeak)},
		{"weir_backup_jobs_completed", "Jobs that workers of the last backup completed.", labels, float64(o.JobsCompleted)},
		{"weir_backup_warnings", "Warnings of the last backup.", labels, float64(len(o.Warnings))},
	})
}

// WriteTextfile replaces a textfile atomically: a collector reads either the old or the new
// content.
func WriteTextfile(path string, metrics []Metric) (err error) {
	var b strings.Builder
	for _, m := range metrics {
		kind := "gauge"
		if strings.HasSuffix(m.Name, "_total") {
			kind = "counter"
		}
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n%s%s %s\n", m.Name, m.Help, m.Name, kind, m.Name, m.Labels,
			strconv.FormatFloat(m.Value, 'f', -1, 64))
	}
	// The collector reads only *.prom, so it ignores this file.
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write metrics: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("write metrics: %w", err), os.Remove(f.Name()))
		}
	}()
	_, err = f.WriteString(b.String())
	// The collector runs as another user.
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// ReadMetric returns a value from a textfile, or 0 if it is not there.
func ReadMetric(path, name string) (float64, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read metrics: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+" "); ok {
			v, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return 0, fmt.Errorf("read metrics: %s: %w", path, err)
			}
			return v, nil
		}
	}
	return 0, nil
}
