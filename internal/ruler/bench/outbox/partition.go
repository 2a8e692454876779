package outboxbench

import (
	"context"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/measure"
	"github.com/weirdb/weir/internal/ruler/bench"
	outboxload "github.com/weirdb/weir/internal/ruler/bench/outbox/load"
	"github.com/weirdb/weir/internal/ruler/bench/suite"
	"github.com/weirdb/weir/outbox"
)

const (
	// pastKeys is the number of keys of an old backlog, pastChunk the number of rows per
	// statement that creates it.
	pastKeys  = 400
	pastChunk = 100_000
)

// partition measures the effect of a window and of partitions on the customary design when
// months of rows are in the table, as reference report 5 did, and weir's claim modes on the
// same backlog. Each side is measured until it has delivered as many rows as are in the window.
func (s *run) partition(ctx context.Context) error {
	if !s.has(outbox.SkipLocked) {
		s.Leave("partitions: %s has neither them nor SKIP LOCKED", s.o.Engine.Title())
		return nil
	}
	p := s.o.Plan
	e := s.backlog(Partition, "partition", fmt.Sprintf("A backlog of %d rows over %d days", p.PartitionRecords, p.PartitionDays), p.PartitionRounds, p.PartitionRecords, payloadBytes)
	e.Factors["days"], e.Factors["window"] = strconv.Itoa(p.PartitionDays), p.Window.String()
	e.Warmup = 0
	windows, periods := p.Windows, p.Periods
	if len(windows) == 0 {
		windows = []time.Duration{p.Window, 0}
	}
	if len(periods) == 0 {
		periods = []outbox.Period{outbox.Unpartitioned, outbox.Daily}
	}
	for _, period := range periods {
		for _, window := range windows {
			name := map[outbox.Period]string{outbox.Unpartitioned: "flat", outbox.Daily: "partitioned"}[period]
			switch {
			case window == 0:
				name += ", no window"
			case window == p.Window:
				name += ", window"
			default:
				name += ", window of " + window.String()
			}
			c := &customary{
				subject: subject{rig: s.rig, shape: shape{layout: outbox.History, period: period}}, Combination: Combination{4, 50}, window: window,
			}
			e.Sides = append(e.Sides, s.pastSide(name, c, &c.subject))
		}
	}
	for _, claim := range []outbox.ClaimMode{outbox.Poll, outbox.Log} {
		own := s.subject(claim, Combination{})
		e.Sides = append(e.Sides, s.pastSide(claim.String(), own, own))
	}
	_, err := s.measure(ctx, e)
	return err
}

// pastSide is a side that consumes an old backlog.
func (s *run) pastSide(name string, by outboxload.Subject, own *subject) bench.Side {
	p := s.o.Plan
	table := own.shape.table()
	c := outboxload.ConsumeConfig{
		Records: p.PartitionRecords, Payload: payloadBytes, Keys: pastKeys,
		Seed: func(ctx context.Context, l *outboxload.Ledger, clock measure.Clock) error {
			return s.seedPast(ctx, table, l, clock)
		},
		Target: func(ctx context.Context) (int64, error) {
			if c, ok := by.(*customary); ok {
				if err := c.probe(ctx); err != nil {
					return 0, fmt.Errorf("count the pages of a claim: %w", err)
				}
			}
			return s.visible(ctx, table)
		},
	}
	return bench.Side{
		Name: name, Factors: map[string]string{FactorRelay: name},
		Run: func(ctx context.Context, _ int) (bench.Sample, error) {
			_, theirs := by.(*customary)
			return s.consumed(ctx, by, c, !theirs)
		},
	}
}

// visible counts the rows within the window.
func (s *run) visible(ctx context.Context, table string) (n int64, err error) {
	err = s.producers.QueryRowContext(ctx, "SELECT COUNT(*) FROM "+table+" WHERE "+engine(s.o.Engine).within(s.o.Plan.Window)).Scan(&n)
	return n, err
}

// within is the condition of a row that was created less than a window ago.
func (e engine) within(window time.Duration) string {
	if suite.Engine(e) == suite.PostgreSQL {
		return fmt.Sprintf("created_at >= now() - interval '%d microseconds'", window.Microseconds())
	}
	return fmt.Sprintf("created_at >= UTC_TIMESTAMP(6) - INTERVAL %d MICROSECOND", window.Microseconds())
}

// seedPast fills a table with messages created over the past days, the same number on each,
// between three quarters and one quarter of the window ago by the time of day, so that the last
// day's are within it. Row i is message i/pastKeys of key i%pastKeys.
func (s *run) seedPast(ctx context.Context, table string, l *outboxload.Ledger, clock measure.Clock) error {
	p := s.o.Plan
	fill := outboxload.Filler(payloadBytes - outboxload.MinPayload)
	for from := int64(0); from < p.PartitionRecords; from += pastChunk {
		to := min(from+pastChunk, p.PartitionRecords)
		if _, err := s.producers.ExecContext(ctx, engine(s.o.Engine).pastRows(table, from, to, p, fill)); err != nil {
			return fmt.Errorf("insert rows %d to %d: %w", from, to-1, err)
		}
		at := clock.Now()
		for i := from; i < to; i++ {
			key := int(i % pastKeys)
			l.Committed(key, l.Hand(key), at)
		}
	}
	analyze := "ANALYZE TABLE "
	if s.o.Engine == suite.PostgreSQL {
		analyze = "ANALYZE "
	}
	return s.exec(ctx, analyze+table)
}

// pastRows is a statement that inserts a range of rows.
func (e engine) pastRows(table string, from, to int64, p Plan, fill []byte) string {
	perDay := max(p.PartitionRecords/int64(p.PartitionDays), 1)
	// Microseconds ago: the days after the row's day, and its position within its day.
	day := (24 * time.Hour).Microseconds()
	if suite.Engine(e) == suite.PostgreSQL {
		age := fmt.Sprintf("(%d - least(i / %d, %d)) * %d::bigint + %d - (i %% %d) * %d / %d",
			p.PartitionDays-1, perDay, p.PartitionDays-1, day, p.Window.Microseconds()*3/4, perDay, p.Window.Microseconds()/2, perDay)
		return fmt.Sprintf(`INSERT INTO %s (bucket, topic, msg_key, payload, created_at)
			SELECT (%s)[i %% %d + 1], '%s', 'k' || i %% %d,
				convert_to(lpad(to_hex(i %% %d), 8, '0') || lpad(to_hex(i / %d), 16, '0') || '%s', 'UTF8'),
				now() - interval '1 microsecond' * (%s)
			FROM generate_series(%d::bigint, %d) AS i`,
			table, bucketArray(), pastKeys, topic, pastKeys, pastKeys, pastKeys, fill, age, from, to-1)
	}
	age := fmt.Sprintf("(%d - LEAST(i DIV %d, %d)) * %d + %d - (i %% %d) * %d DIV %d",
		p.PartitionDays-1, perDay, p.PartitionDays-1, day, p.Window.Microseconds()*3/4, perDay, p.Window.Microseconds()/2, perDay)
	digits := "SELECT 0 AS d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9"
	numbers := fmt.Sprintf(`SELECT %d + a.d + 10 * b.d + 100 * c.d + 1000 * d.d + 10000 * e.d AS i
		FROM (%[2]s) a, (%[2]s) b, (%[2]s) c, (%[2]s) d, (%[2]s) e`, from, digits)
	return fmt.Sprintf(`INSERT INTO %s (topic, msg_key, payload, created_at)
		SELECT '%s', CONCAT('k', i %% %d), CONCAT(LPAD(LOWER(HEX(i %% %d)), 8, '0'), LPAD(LOWER(HEX(i DIV %d)), 16, '0'), '%s'),
			UTC_TIMESTAMP(6) - INTERVAL (%s) MICROSECOND
		FROM (%s) numbers WHERE i < %d ORDER BY i`,
		table, topic, pastKeys, pastKeys, pastKeys, fill, age, numbers, to)
}

// bucketArray holds the bucket of each key, as Enqueue computes it: FNV-1a.
func bucketArray() string {
	var b strings.Builder
	b.WriteString("'{")
	for key := range pastKeys {
		h := fnv.New32a()
		_, _ = h.Write([]byte(outboxload.KeyName(key))) // a hash never fails
		if key > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.FormatUint(uint64(h.Sum32()%outbox.Buckets), 10))
	}
	b.WriteString("}'::smallint[]")
	return b.String()
}
