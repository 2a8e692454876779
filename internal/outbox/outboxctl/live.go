package outboxctl

import (
	"fmt"
	"strings"
	"time"
)

// oldCount is the age from which a count of the tables is shown with its age.
const oldCount = 2 * time.Second

// Line formats the state of a relay for a terminal: rates and times since the earlier snapshot,
// then levels.
//
//	log | 12,480 msg/s 6.2 MB/s | p50 1.1ms p99 4.0ms | pending 310 oldest 0.1s | in flight 212 | dead 0
func Line(earlier, now *Snapshot, claim string) string {
	seconds := max(now.At.Sub(earlier.At), time.Millisecond).Seconds()
	parts := []string{claim, fmt.Sprintf("%s msg/s %s/s",
		grouped(float64(now.Stats.Delivered-earlier.Stats.Delivered)/seconds),
		size(float64(now.Stats.Bytes-earlier.Stats.Bytes)/seconds))}
	if now.Stats.Delivery.Count() > earlier.Stats.Delivery.Count() {
		times := now.Stats.Delivery
		times.Sub(&earlier.Stats.Delivery)
		parts = append(parts, fmt.Sprintf("p50 %s p99 %s", short(times.Quantile(0.5)), short(times.Quantile(0.99))))
	}
	if !now.CountedAt.IsZero() {
		pending := fmt.Sprintf("pending %s oldest %s", grouped(float64(now.Status.Pending)), short(int64(now.Status.Oldest)))
		if age := now.At.Sub(now.CountedAt); age > oldCount {
			pending += " " + age.Round(time.Second).String() + " ago"
		}
		parts = append(parts, pending)
	}
	parts = append(parts, "in flight "+grouped(float64(now.Stats.InFlight)))
	if waiting := now.Stats.Parked + now.Stats.Deferred; waiting > 0 {
		parts = append(parts, "waiting "+grouped(float64(waiting)))
	}
	if !now.CountedAt.IsZero() {
		parts = append(parts, "dead "+grouped(float64(now.Status.Dead)))
	}
	if now.Stats.BrokerDown {
		parts = append(parts, "NO BROKER")
	}
	return strings.Join(parts, " | ")
}

// grouped formats a number with thousands separators.
func grouped(v float64) string {
	text := fmt.Sprintf("%.0f", v)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

func size(bytes float64) string {
	for _, unit := range []string{"B", "kB", "MB"} {
		if bytes < 1000 {
			return fmt.Sprintf("%.3g %s", bytes, unit)
		}
		bytes /= 1000
	}
	return fmt.Sprintf("%.3g GB", bytes)
}

// short formats nanoseconds with two or three digits.
func short(ns int64) string {
	switch d := time.Duration(ns); {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%.0fd", d.Hours()/24)
	case d >= time.Minute:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	default:
		return fmt.Sprintf("%.1fms", float64(d)/1e6)
	}
}
