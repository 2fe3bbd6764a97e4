// Command check fails if the summary of a run is not what the README promises.
package main

import (
	"encoding/json"
	"fmt"
	"os"
)

func main() {
	if err := check(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "check:", err)
		os.Exit(1)
	}
}

func check(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var s struct {
		Budget            uint64  `json:"budget_bytes"`
		Plain             uint64  `json:"plain_peak_bytes"`
		Predicted         uint64  `json:"predicted_peak_bytes"`
		PredictedReserved uint64  `json:"predicted_reserved_bytes"`
		Measured          uint64  `json:"measured_peak_bytes"`
		MeasuredReserved  uint64  `json:"measured_reserved_bytes"`
		LastLoss          float64 `json:"last_loss"`
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	fmt.Printf("%+v\n", s)
	switch {
	case s.Plain < 2*s.Budget:
		return fmt.Errorf("a plain step needs %d bytes, less than twice the budget of %d", s.Plain, s.Budget)
	case s.Measured != s.Predicted || s.MeasuredReserved != s.PredictedReserved:
		return fmt.Errorf("measured peak %d and reserved %d, predicted %d and %d", s.Measured, s.MeasuredReserved, s.Predicted, s.PredictedReserved)
	case s.MeasuredReserved > s.Budget:
		return fmt.Errorf("%d bytes were reserved, the budget is %d", s.MeasuredReserved, s.Budget)
	case !(s.LastLoss < 3):
		return fmt.Errorf("the last loss is %v, want less than 3", s.LastLoss)
	}
	return nil
}
