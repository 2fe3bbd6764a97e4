package train

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/headroom-go/headroom/tensor"
)

// Summary is summary.json: what a run was given, what was foreseen, and what
// came of it. Sizes are in bytes.
type Summary struct {
	Device                string       `json:"device"`
	Ranks                 int          `json:"ranks"` // that computed together; the other figures of memory are of the first
	Model                 string       `json:"model"`
	Parameters            int          `json:"parameters"`
	Batch                 int          `json:"batch"`
	Seq                   int          `json:"seq,omitempty"`
	Task                  Task         `json:"task,omitempty"`
	Precision             tensor.DType `json:"precision"`
	Data                  []string     `json:"data"`
	BudgetBytes           uint64       `json:"budget_bytes"`
	PlainPeakBytes        uint64       `json:"plain_peak_bytes"`
	PredictedPeakBytes    uint64       `json:"predicted_peak_bytes"`
	PredictedReserved     uint64       `json:"predicted_reserved_bytes"`
	MeasuredPeakBytes     uint64       `json:"measured_peak_bytes"`
	MeasuredReservedBytes uint64       `json:"measured_reserved_bytes"`
	Strategy              string       `json:"strategy"`
	MicroBatch            int          `json:"micro_batch"`
	RecomputedBlocks      int          `json:"recomputed_blocks"`
	Steps                 int          `json:"steps"`
	ResumedFromStep       int          `json:"resumed_from_step"`
	Interrupted           bool         `json:"interrupted"`
	FirstLoss             float64      `json:"first_loss"`
	LastLoss              float64      `json:"last_loss"`
	TestSamples           int          `json:"test_samples,omitempty"`
	TestLoss              float64      `json:"test_loss,omitempty"`       // on a test set
	TestAccuracy          float64      `json:"test_accuracy,omitempty"`   // the same
	ValidationLoss        float64      `json:"validation_loss,omitempty"` // on the part of the text that was kept back
	TokensPerSecond       float64      `json:"tokens_per_second,omitempty"`
	SamplesPerSecond      float64      `json:"samples_per_second"`
	Seconds               float64      `json:"seconds"`
	EstimatedStepSeconds  float64      `json:"estimated_step_seconds,omitempty"` // where steps were measured
	StepSeconds           float64      `json:"step_seconds,omitempty"`           // the median

	Lengths []LengthSummary `json:"lengths,omitempty"` // of a run whose batches differ in length; the strategy above is the last step's
}

// LengthSummary says how steps of a length went.
type LengthSummary struct {
	Seq              int     `json:"seq"`
	Steps            int     `json:"steps"`
	Strategy         string  `json:"strategy"` // that was chosen in the end
	EstimatedSeconds float64 `json:"estimated_seconds"`
	StepSeconds      float64 `json:"step_seconds"` // the least that was measured; 0: none was
}

// Write writes summary.json into dir.
func (s Summary) Write(dir string) error { return writeJSON(filepath.Join(dir, "summary.json"), s) }

// Concluded says whether the run in dir, whose checkpoint is of its last step, has also
// written all that it writes then: summary.json is the last of it.
func Concluded(dir string, steps int) bool {
	text, err := os.ReadFile(filepath.Join(dir, "summary.json"))
	var s Summary
	return err == nil && json.Unmarshal(text, &s) == nil && s.Steps == steps
}
