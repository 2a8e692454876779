package wal

import "github.com/weirdb/weir/internal/backup/notice"

// Metrics returns the status as metrics.
func (s Status) Metrics() []notice.Metric {
	connected := 0.0
	if s.Connected {
		connected = 1
	}
	metrics := []notice.Metric{
		{Name: "weir_wal_connected", Help: "Whether log is being received.", Labels: "", Value: connected},
		{Name: "weir_wal_flushed_bytes", Help: "Position up to which log is kept.", Labels: "", Value: float64(s.Flushed)},
		{Name: "weir_wal_segments_total", Help: "Segments completed since the start.", Labels: "", Value: float64(s.Segments)},
		{Name: "weir_wal_reconnects_total", Help: "Connections after the first since the start.", Labels: "", Value: float64(s.Reconnects)},
	}
	if s.LagBytes >= 0 {
		metrics = append(metrics, notice.Metric{Name: "weir_wal_lag_bytes", Help: "Log that the server has and that is not kept.", Labels: "", Value: float64(s.LagBytes)})
	}
	if !s.FlushedAt.IsZero() {
		metrics = append(metrics, notice.Metric{Name: "weir_wal_flushed_timestamp_seconds", Help: "When log was kept last.", Labels: "", Value: float64(s.FlushedAt.UnixMilli()) / 1000})
	}
	return metrics
}
